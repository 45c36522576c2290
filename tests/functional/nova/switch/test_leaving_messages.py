# SPDX-License-Identifier: Apache-2.0
"""Messages of `nova-accel remove`, each with its real cause."""

import os
import pathlib
from typing import Any

import pytest

from nova_accel.host.state import claims_file, device_notes
from nova_accel.inventory.adoption import records
from placement_sync.cli import sync_command
from placement_sync.daemon import heartbeat
from tests.functional.nova.support import harness
from tests.functional.nova.switch import (
    host_commands,
    leaving,
    stock_driver,
    test_gone_host,
)
from tests.functional.sync.messages import transcript

_PROCESS = 4711


class LeavingMessages(leaving.LeavingTestBase):
    @pytest.fixture(autouse=True)
    def _capture(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def start(self) -> None:
        self.use(stock_driver.ACCEL)
        self.start_host(*leaving.CARDS)
        self.written = transcript.Transcript(
            self.capsys,
            {
                self.state_dir(): "STATE",
                str(self.hosts["host1"].root): "ROOT",
                self.placement.fixture.endpoint: "PLACEMENT",
                self.api_fixture.base_url: "NOVA",
            },
        )

    def boot_named(self, specs: dict[str, str], name: str) -> Any:
        """Return a server whose flavor has a name, too."""
        self.flavor = f"of-{name}"
        return self.boot(specs, name=name)

    def _create_flavor(self, *args: Any, **kwargs: Any) -> Any:
        return super()._create_flavor(*args, name=self.flavor, **kwargs)

    def run_all(self, lines: str, state_dir: str | None = None) -> None:
        """Run each line as a command on host1."""
        hidden = (
            *("--host", "host1", "--connect", host_commands.LIBVIRT),
            *("--endpoint", self.placement.fixture.endpoint),
            *("--compute-endpoint", self.api_fixture.base_url),
            *("--root", str(self.hosts["host1"].root)),
            *(("--state-dir", self.state_dir()) if state_dir is None else ()),
        )
        for line in lines.strip().splitlines():
            self.written.run(line, *hidden)

    def delete_while_down(self, server: Any) -> None:
        """Delete a server that its nova-compute does not clean up."""
        self.force_down(True)
        self._delete_server(server)
        self.force_down(False)

    def allocate(self, consumer: str, units: int) -> None:
        """Have a consumer use vGPUs of the T4, beside what it has."""
        path = f"/allocations/{consumer}"
        body = self.placement.get(path, version="1.38").body
        allocations = {
            uuid: {"resources": record["resources"]}
            for uuid, record in body["allocations"].items()
        }
        card = self.provider(harness.T4)
        allocations.pop(card, None)
        if units:
            allocations[card] = {"resources": {"VGPU": units}}
        answer = self.placement.put(
            path,
            {
                "allocations": allocations,
                "consumer_generation": body.get("consumer_generation"),
                "consumer_type": "INSTANCE",
                "project_id": body.get("project_id", "p"),
                "user_id": body.get("user_id", "u"),
            },
            version="1.38",
        )
        self.assertEqual(204, answer.status, answer.body)

    @pytest.mark.long
    def test_servers_with_mdevs(self) -> None:
        self.start()
        server = self.boot_named(leaving.SMALL, "vm-a")
        self.run_all(
            """\
remove plan
remove apply
remove apply --move cold --wait 60
"""
        )
        self.end_service()
        self.run_all(
            """\
remove apply --move cold
remove apply
remove apply --keep-servers --extra-specs
remove apply --keep-servers
"""
        )
        self._delete_server(server)
        self.run_all("remove apply --extra-specs\nremove apply")
        self.written.check("remove: servers with mdevs")

    @pytest.mark.long
    def test_servers_with_whole_functions(self) -> None:
        self.start()
        server = self.boot_named(leaving.WHOLE, "vm-b")
        self.run_all("remove plan")
        self._delete_server(server)
        store = device_notes.FaultNotes(self.state_dir())
        store.begin_scrub(harness.GPU, harness.GPU)
        self.end_service()
        self.run_all(
            f"""\
remove apply
remove apply --cleaned {harness.T4}
remove apply --cleaned {harness.GPU}
remove plan
"""
        )
        self.written.check("remove: servers with whole functions")

    @pytest.mark.long
    def test_servers_that_are_shelved(self) -> None:
        self.flags(shelved_offload_time=-1)
        self.start()
        self.boot_named(leaving.SMALL, "vm-g")
        self.boot_named(leaving.WHOLE, "vm-h")
        self.run_all("remove apply --shelve --wait 60")
        self.written.check("remove: shelved servers")

    @pytest.mark.long
    def test_adopted_servers(self) -> None:
        self.start()
        server = self.boot_named(leaving.SMALL, "vm-c")
        self.end_service()
        self.write_adoption(server, records.AdoptionState.UNDOING)
        self.run_all("remove apply")
        self.write_adoption(server, records.AdoptionState.ADOPTED)
        self.run_all("remove apply")
        self.written.check("remove: adopted servers")

    @pytest.mark.long
    def test_consumers_without_a_server_or_claims(self) -> None:
        self.start()
        plain = self.boot_named({}, "vm-d")
        self.end_service()
        for consumer in (test_gone_host.LEAKED, plain["id"]):
            self.allocate(consumer, 1)
            self.run_all("remove apply")
            self.allocate(consumer, 0)
        self.written.check("remove: leaked allocations")

    @pytest.mark.long
    def test_servers_that_migrate(self) -> None:
        self.start_other()
        server = self.boot_named(leaving.SMALL, "vm-e")
        self.api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.end_service()
        self.run_all("remove apply --keep-servers")
        self.written.check("remove: migrations")

    def start_other(self) -> None:
        """Start host1, and host2 that takes its servers."""
        self.start()
        self.power_off_to_move()
        self.start_host(*leaving.CARDS, name="host2")
        self.be_on("host1")

    def test_states_that_a_removal_refuses(self) -> None:
        self.start()
        self.run_all("remove plan", state_dir="")
        self.end_service()
        writer = sync_command.WRITER
        status = heartbeat.Heartbeat(self.state_dir(), writer, 60.0)
        status.record_failure("Placement is down")
        self.run_all("remove apply")
        for path in pathlib.Path(self.state_dir(), "status").iterdir():
            path.unlink()
        provider = f"/resource_providers/{self.provider(harness.T4)}"
        name = self.placement.get(provider, version="1.36").body["name"]
        self.placement.put(provider, {"name": "renamed"}, version="1.36")
        self.run_all("remove apply")
        self.placement.put(provider, {"name": name}, version="1.36")
        os.unlink(pathlib.Path(self.state_dir(), claims_file.NAME))
        self.run_all("remove apply")
        self.written.check("remove: refusals")

    @pytest.mark.long
    def test_mdevs_that_are_open(self) -> None:
        self.start()
        server = self.boot_named(leaving.SMALL, "vm-f")
        (mdev,) = self.mdevs_of(server)
        self.end_service()
        self.delete_while_down(server)
        self._end_guests(self.computes["host1"])
        root = self.hosts["host1"].root
        group = (
            root / "sys/bus/mdev/devices" / mdev / "iommu_group"
        ).readlink()
        files = root / f"proc/{_PROCESS}/fd"
        files.mkdir(parents=True)
        (files / "3").symlink_to(root / "dev/vfio" / group.name)
        self.run_all("remove apply")
        self.written.check("remove: open mdevs")
