# SPDX-License-Identifier: Apache-2.0
"""Proves that installed drivers keep the rules of the library."""

import pathlib

from nova_accel import conformance
from nova_accel.conformance.findings import Finding
from nova_accel.discovery import plugin
from nova_accel.host.sysfs import fs
from tests.lab import fakehost

# Accepted findings by driver, each as a part of its text, with the reason.
ACCEPTED = {
    # Without its class an integrated GPU can't be recognized as a GPU; it
    # is described as another mdev parent meanwhile.
    "mdev": ("0000:00:02.0/class (",),
    # Without its ids or class the card at 41:00.0 is not known to be an equal
    # of the one at 42:00.0, which another driver has. The kernel has them in
    # memory, so that reading them does not fail (pci-sysfs.c).
    "pci_passthrough": tuple(
        f"0000:41:00.0/{name} ({error}): 0000:42:00.0 has 1 PGPU"
        for name in ("vendor", "device", "class")
        for error in ("EIO", "EACCES")
    ),
}


def format_unaccepted(driver: str, findings: tuple[Finding, ...]) -> str:
    return "\n".join(
        str(finding)
        for finding in findings
        if not any(text in str(finding) for text in ACCEPTED.get(driver, ()))
    )


def test_a_driver_keeps_the_rules_on_a_host(
    driver: str, source: fs.FileSource, every: bool
) -> None:
    findings = conformance.check_driver(
        plugin.load([driver])[driver], source, name=driver, every=every
    )
    message = format_unaccepted(driver, findings)
    assert not message, message


def test_a_driver_keeps_the_rules_on_the_simulated_kernel(
    driver: str,
    spec: fakehost.HostSpec,
    needs_fuse: None,
    tmp_path: pathlib.Path,
) -> None:
    with fakehost.simulated_sysfs(spec, tmp_path):
        findings = conformance.check_driver(
            plugin.load([driver])[driver], fs.DiskSource(tmp_path), name=driver
        )
    message = format_unaccepted(driver, findings)
    assert not message, message
