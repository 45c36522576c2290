# SPDX-License-Identifier: Apache-2.0
"""Drivers keep the rules that the library relies on."""

import pathlib

import pytest

from nova_accel import conformance
from nova_accel.conformance.findings import Finding
from nova_accel.discovery import plugin
from nova_accel.host.sysfs import fs
from tests.functional.fakehost.support import cards
from tests.lab import fakehost

# Findings that are known, by driver: a part of their text, and why it
# stays so.
KNOWN = {
    # Of an integrated GPU whose class can't be read nothing else tells
    # that it is one; it counts as any other maker of mdevs meanwhile.
    "mdev": ("0000:00:02.0/class (",),
}


def unknown(driver: str, found: tuple[Finding, ...]) -> str:
    return "\n".join(
        str(finding)
        for finding in found
        if not any(text in str(finding) for text in KNOWN.get(driver, ()))
    )


def test_a_driver_keeps_the_rules_on_a_host(
    driver: str, source: fs.FileSource, every: bool
) -> None:
    found = conformance.check_driver(
        plugin.load([driver])[driver], source, name=driver, every=every
    )
    wrong = unknown(driver, found)
    assert not wrong, wrong


@pytest.mark.parametrize("spec", [cards.SPEC, cards.GPUS], ids=["few", "gpus"])
def test_a_driver_keeps_the_rules_on_the_simulated_kernel(
    driver: str,
    spec: fakehost.HostSpec,
    needs_fuse: None,
    tmp_path: pathlib.Path,
) -> None:
    with fakehost.simulated_sysfs(spec, tmp_path):
        found = conformance.check_driver(
            plugin.load([driver])[driver], fs.DiskSource(tmp_path), name=driver
        )
    wrong = unknown(driver, found)
    assert not wrong, wrong
