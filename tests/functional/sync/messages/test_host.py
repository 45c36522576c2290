# SPDX-License-Identifier: Apache-2.0
"""Messages of the commands about a host, each with its real cause."""

import fcntl
import json
import pathlib
import sys
import time
import uuid

import pytest

from nova_accel.cli.commands import main
from nova_accel.discovery import plugin
from nova_accel.doctor.ansible import manifests
from nova_accel.host.state import claims_file, device_notes
from nova_accel.model import providers, usage
from placement_sync.cli.main import main as sync_main
from placement_sync.daemon import status
from tests.functional.sync.commands import test_drain
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import nova_standin, servers, sites
from tests.hosts import look
from tests.support import entry_points
from tests.support.hosts import prepared
from tests.unit.nova_accel.cli import test_commands
from tests.unit.nova_accel.doctor import changes, test_doctor_command
from tests.unit.nova_accel.doctor.ansible import (
    test_device_use,
    test_driver_command,
)
from tests.unit.placement_sync.client import test_stock_compute

sample = test_commands.sample
CARD, HOST = sites.CARD, sites.HOST
Monkey = pytest.MonkeyPatch


class Host(transcript.Transcript):
    """Transcript of commands that get the nova.conf of a site."""

    def __init__(self, site: sites.Site, place: pathlib.Path) -> None:
        super().__init__(
            site.capsys,
            {str(place): "DIRECTORY", site.placement.url: "PLACEMENT"},
        )
        self.site = site
        self.place = place

    def run_all(self, lines: str, *hidden: str) -> None:
        """Run each line as a command.

        :param hidden: options that are not shown, nova.conf by default.
        """
        for line in lines.strip().splitlines():
            self.run(line, *(hidden or ("--config-file", str(self.site.conf))))


@pytest.fixture
def host(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: sites.Output
) -> Host:
    """Return the transcript of a host with two cards."""
    site = sites.Site(placement, tmp_path, capsys)
    site.register()
    return Host(site, tmp_path)


def test_drains(host: Host) -> None:
    site = host.site
    host.run_all("drain\nundrain 0000:3b:00.0\nheal\nstatus")
    site.state.mkdir()
    host.run_all(
        f"""\
drain
drain --wait 1
drain {CARD}
drain {CARD} --reason r --wait none
drain 0000:99:00.0 --reason r
drain '' --reason r
drain {CARD} --reason 'fan fails' --host {HOST}
drain {CARD} --reason 'fan fails' --host {HOST} --wait 0
drain {CARD} --reason r --host nope --wait 0
undrain 0000:af:00.0
undrain {CARD} --host {HOST} --wait 0
undrain {CARD}
drain 0000:99:00.0 --reason gone --force
"""
    )
    site.once(*sites.NODE)
    test_drain.publish(site, test_drain.claim(CARD))
    host.run_all(
        f"""\
drain {CARD} --reason r --host {HOST} --wait 0
drain 0000:af:00.0 --reason r
run --once --host {HOST}
drain {CARD} --host {HOST} --wait-empty 0
drain {CARD} --host {HOST} --root {site.root} --wait-empty 0
undrain {CARD} --host {HOST} --wait 0
undrain {CARD} --timeout 0
"""
    )
    host.check("drain and undrain")


def test_faults(host: Host) -> None:
    host.site.state.mkdir()
    host.run_all(f"heal\nheal {CARD}")
    notes = device_notes.FaultNotes(str(host.site.state))
    notes.put(CARD, "its reset failed", None)
    host.run_all(f"heal 0000:af:00.0\nheal {CARD}")
    device = host.site.root / "sys/bus/pci/devices" / CARD
    (device / "config").write_bytes(b"\xff" * 64)
    host.run_all(f"heal\nheal {CARD}")
    host.check("heal")


def test_passes(host: Host, monkeypatch: Monkey) -> None:
    site = host.site
    host.run_all("status")
    site.state.mkdir()
    host.run(
        f"run --once --host {HOST} --endpoint http://127.0.0.1:1",
        *("--state-dir", str(site.state)),
    )
    host.run_all(
        f"""\
status
run -f json
run --interval 0
run --interval soon
run --once --host nope
run --once --host-uuid x
run --once --host ''
run --dry-run --host {HOST} --state-dir relative
status --root {site.root}
sync --once --root {site.root}
run --once --endpoint PLACEMENT --os-cloud lab
"""
    )
    site.once(*sites.NODE)
    host.run_all(f"run --once --host {HOST}\nstatus")
    broken = site.state / "book.json"
    broken.write_text("{")
    host.run_all(f"run --once --host {HOST}")
    broken.unlink()
    new = f"run --once --create-root --host {uuid.UUID(int=5)}.example.org"
    host.run_all(f"{new} --dry-run")
    sampled = status.Status(
        writer="nova-compute",
        succeeded=time.time(),
        sampled=time.time(),
        device_usage=(usage.DeviceUsage(address=CARD, power_watts=31.5),),
    )
    (site.state / "status" / "nova-compute.json").write_text(
        json.dumps(sampled.as_dict())
    )
    host.run_all("status")
    (host.place / "compute_id").write_text("none")
    host.run_all("run --once")
    (host.place / "compute_id").unlink()
    host.wait = "placement-sync"
    with (site.state / "sync.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(
            time, "sleep", lambda _: fcntl.flock(other, fcntl.LOCK_UN)
        )
        host.run_all(f"run --once --host {HOST}")
    monkeypatch.undo()
    site.conf.write_text(f"[nova_accel]\nstate_dir = {site.conf}/state\n")
    host.run_all(f"drain {CARD} --reason r --root {site.root}")
    host.check("passes")


def test_a_stock_nova_compute(host: Host) -> None:
    host.site.state.mkdir()
    compute = test_stock_compute.Host(host.site.state)
    watch = compute.watch()
    while not watch.is_proved():
        compute.report()
    with nova_standin.serve() as nova:
        nova.add_host(sites.ROOT, HOST)
        host.run_all(
            f"run --once --host {HOST}",
            *("--config-file", str(host.site.conf)),
            *("--compute-endpoint", nova.url),
        )
    host.check("a stock nova-compute")


def test_inspections(host: Host) -> None:
    site, empty = host.site, host.place / "empty"
    (empty / "sys").mkdir(parents=True)
    host.run_all(
        f"""\
inspect --root {host.place / "missing"}
inspect --root {host.place}
inspect --root ''
inspect --root {empty}
inspect --root {site.conf}
inspect --config-file {host.place / "missing.conf"}
"""
    )
    (host.site.state / "drained").parent.mkdir()
    (host.site.state / "drained").write_text("")
    host.run_all("inspect")
    odd = host.place / "odd.conf"
    odd.write_text("[nova_accel]\ndrivers = nvida\n")
    host.run_all(f"inspect --config-file {odd}", "--root", str(site.root))
    host.check("inspect")


def test_checks_and_drivers(
    capsys: sites.Output, tmp_path: pathlib.Path, monkeypatch: Monkey
) -> None:
    good = test_doctor_command.save({}, tmp_path / "good.tar.gz")
    change = test_driver_command.UNBOUND | changes.CASES["iommu.off"].change
    bad = test_doctor_command.save(change, tmp_path / "bad.tar.gz")
    (tmp_path / "empty" / "sys").mkdir(parents=True)
    conf, state = tmp_path / "nova.conf", tmp_path / "state"
    conf.write_text(f"[nova_accel]\nroot = {bad}\nstate_dir = {state}\n")
    drivers, sources = tmp_path / "drivers", tmp_path / "drivers.json"
    monkeypatch.setattr(manifests, "DIRECTORY", str(drivers))
    sources.write_text(json.dumps(test_driver_command.VARIABLES))
    host = transcript.Transcript(capsys, {str(tmp_path): "DIRECTORY"}, main)

    def run_all(lines: str) -> None:
        for line in lines.strip().splitlines():
            host.run(line)

    install = f"driver install --config-file {conf} --vars {sources}"
    run_all(
        f"""\
doctor --root {tmp_path / "empty"}
doctor --root {look.make("nothing", tmp_path / "none")} --only iommu
doctor --root {bad} --only iommu
doctor --root {bad} --only iommu --fix-plan
doctor --root {bad} --only nope
doctor --root {bad} --technology nope
doctor --root {bad} --fix-plan -f json
doctor --root {bad} --cloud
capture --root {bad} -o {tmp_path / "again.tar.gz"}
driver plan --root {good}
driver plan --root {bad} --vars {tmp_path / "missing.json"}
driver plan --root {bad} --role nope
driver plan --root {bad} --technology nope
driver plan --root {bad} -c Role -c Reasons
driver install --config-file {conf}
{install}
{install} --drain-wait soon
driver status
driver remove --config-file {conf}
"""
    )
    state.mkdir()
    test_device_use.publish(state, prepared.T4)
    host.run(install)
    (state / "book.json").write_text("{")
    host.run(install)
    monkeypatch.setitem(sys.modules, "ansible_runner", None)
    name = "nova_accel.doctor.ansible.playbook"
    monkeypatch.delitem(sys.modules, name, raising=False)
    host.run(f"driver plan --vars {sources}")
    drivers.mkdir()
    (drivers / "nova_accel.json").write_text("{")
    host.run("driver status")
    own = tmp_path / "own.conf"
    own.write_text(
        "[DEFAULT]\ncompute_driver = accel.AccelLibvirtDriver\n"
        f"[nova_accel]\nstate_dir = {own}/state\n"
    )
    host.run(f"doctor --only state.directory --config-file {own}")
    for area in (ImportError("no module"), 7, test_doctor_command.ODD):
        test_doctor_command.install(monkeypatch, tmp_path / "site", area)
        host.run(f"doctor --root {bad} --only other")
    host.check("doctor, capture and driver")


def test_programs(
    capsys: sites.Output, tmp_path: pathlib.Path, monkeypatch: Monkey
) -> None:
    monkeypatch.delenv("OS_CLOUD", raising=False)
    monkeypatch.setattr("nova_accel.discovery.nova_conf.CONFIG_FILES", ())
    names = {str(tmp_path): "DIRECTORY"}
    host = transcript.Transcript(capsys, names, main, "nova-accel")
    for line in (
        "--help",
        *("inspect -c", "drian", "drain --host", "--host node1"),
        *("audit --once", "audit", "audit --endpoint"),
        f"drain {CARD} --reason r --state-dir relative",
        f"drain {CARD} --reason r --state-dir {tmp_path / 'missing'}",
        f"inspect --config-file {tmp_path / 'missing.conf'}",
        f"doctor --config-file {tmp_path / 'missing.conf'}",
    ):
        host.run(line)
    with (
        pathlib.Path("/dev/full").open("w") as full,
        monkeypatch.context() as m,
    ):
        m.setattr(sys, "stdout", full)
        host.run("driver status")
    host.check("programs")


def test_help_of_placement_sync(capsys: sites.Output) -> None:
    sync = transcript.Transcript(capsys, {}, sync_main, "placement-sync")
    sync.run("--help")
    sync.check("placement-sync")


@pytest.mark.usefixtures("sample")
def test_broken_installations(
    host: Host, capsys: sites.Output, monkeypatch: Monkey
) -> None:
    written = transcript.Transcript(capsys, {}, main, "nova-accel")
    written.run("broken word")
    written.run("odd word")
    site = host.place / "site"
    entry_points.remove_groups(monkeypatch, site, plugin.GROUP)
    hidden = ("--config-file", str(host.site.conf))
    written.run("inspect", *hidden)
    written.check("broken installations")


def test_claims_of_another_host(host: Host) -> None:
    """Published claims that name another node are not this host's."""
    root = providers.ProviderRoot(name="other", uuid=str(uuid.UUID(int=9)))
    host.site.state.mkdir()
    claims_file.ClaimsFile(str(host.site.state)).write(root, (), ())
    host.run_all("run --once")
    host.check("claims of another host")
