# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit, each with its real cause, and their repairs."""

import pathlib

import pytest

from nova_accel.cli import registered_readers
from nova_accel.host.execute import privileged
from tests.functional.sync.commands import test_audit
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import audit_site
from tests.functional.sync.support.audit_site import CARD, mdev
from tests.support import entry_points
from tests.support.hosts.simulated import ROOT
from tests.unit.nova_accel.doctor import test_doctor_command

_mounted = test_audit._mounted
hypervisor, site = test_audit.hypervisor, test_audit.site
Site = audit_site.Site
SERVERS = [f"a000000{n}-0000-4000-8000-00000000000{n}" for n in range(5)]


def test_findings(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        site.start(SERVERS[number], f"slot-{number}")
    site.remove_allocation(SERVERS[0])
    privileged.remove_mdev(str(site.kernel.root), mdev("slot-1"))
    site.allocate(audit_site.NO_SERVER, CARD)
    site.make("slot-5")
    site.make("slot-6")
    site.define(SERVERS[3], mdev("slot-6"))
    site.nova.add_server(SERVERS[4], "compute-2")
    site.allocate(SERVERS[4], CARD)
    hidden = (
        *("--endpoint", site.placement.url, "--pause", "0"),
        *("--host", ROOT.name, "--host-uuid", ROOT.uuid),
        *("--config-file", str(site.config)),
    )
    nova = ("--compute-endpoint", site.nova.url)
    names = {
        str(site.kernel.root): "ROOT",
        str(pathlib.Path(site.config).parent): "DIRECTORY",
        site.placement.url: "PLACEMENT",
        site.nova.url: "NOVA",
    }
    host = transcript.Transcript(site.capsys, names)
    host.run("audit", *hidden)
    host.run("audit", *hidden, *nova)
    host.run("audit --heal", *hidden, *nova)
    host.run(f"audit --root {site.kernel.root}", *hidden, *nova)
    group, packages = registered_readers.DOMAINS_GROUP, tmp_path / "site"
    entry_points.remove_groups(monkeypatch, packages, group)
    host.run("audit", *hidden, *nova)
    error = ImportError("No module named 'libvirt'")
    test_doctor_command.install(monkeypatch, packages, error, group)
    host.run("audit", *hidden, *nova)
    host.check("audit")
