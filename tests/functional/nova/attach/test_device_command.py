# SPDX-License-Identifier: Apache-2.0
"""``openstack accel device set`` and ``heal`` work over Nova's message bus."""

import contextlib
import datetime
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import fixtures
import oslo_messaging
import pytest
from nova import context, rpc
from nova.api.openstack.compute import instance_actions
from webob import exc

from nova_accel import model
from nova_accel.config import library_version
from nova_accel.host.state import device_notes
from nova_accel.model import names, rpc_names
from tests.functional.nova.operations import moving
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.service import syncing
from tests.functional.nova.support import harness
from tests.functional.sync.commands import programs
from tests.functional.sync.messages import transcript
from tests.support import golden

CARD = f"host1/{harness.T4}"
OFF = json.dumps({"address": harness.T4_B, "use": "off"})
SMALL = harness.vgpu_group("_A", "4Q")


class DeviceCommandBase(syncing.SyncTestBase):
    @pytest.fixture(autouse=True)
    def _capture(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(scheduled.without_keystone())
        self.written = transcript.Transcript(self.capsys, {})

    def write(self, command: str, *hidden: str) -> None:
        """Run a command, and add it to the transcript."""
        endpoints = (
            *("--endpoint", self.placement.fixture.endpoint),
            *("--compute-endpoint", self.api_fixture.base_url),
        )
        self.written.run(command, *hidden, *endpoints)

    def limit(self, name: str, seconds: float) -> None:
        """Set a limit of the calls of hosts, or of progress."""
        module = (
            "cli.progress" if name == "DELAY_S" else "fleet.cli.host_calls"
        )
        self.useFixture(
            fixtures.MonkeyPatch(f"placement_sync.{module}.{name}", seconds)
        )

    def rpc_server(self, name: str = "host1") -> Any:
        """Return the RPC server of a nova-compute."""
        return (
            self.computes[name]
            .driver._hooks.operations.by_name["hot_attach"]
            .rpc_server
        )

    def execute(
        self, *words: str, noun: str = "device"
    ) -> tuple[int, str, str]:
        """Return exit status, output and error output of a command."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = programs.main(
                [
                    noun,
                    *words,
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                ]
            )
        return status, out.getvalue(), err.getvalue()

    def run_command(self, *words: str, status: int = 0) -> list[list[str]]:
        """Return address, result and reason of each device."""
        code, out, err = self.execute(*words, "-f", "json")
        self.assertEqual(status, code, err)
        return [
            [row["Address"], row["Result"], row["Reason"]]
            for row in json.loads(out)
        ]

    @property
    def endpoint(self) -> Any:
        return (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .device_endpoint
        )

    @contextlib.contextmanager
    def passes(self) -> Iterator[None]:
        """Run passes of host1, as its thread does, until the block ends."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(0.2):
                self.run_pass()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


class DeviceCommand(DeviceCommandBase):
    def test_a_drain_and_its_end(self) -> None:
        self.start_host(*harness.TWO_T4)
        drain = ("set", CARD, "--drain", "--reason", "the fan  fails")
        self.assertEqual(
            [[harness.T4, "drained", "the fan fails"]],
            self.run_command(*drain),
        )
        note = self.drains().read()[harness.T4]
        self.assertEqual("the fan fails", note.reason)
        self.run_pass()
        self.assertIn(names.DRAINED_TRAIT, self.traits(harness.T4))
        # Without a server that holds it there is nothing to wait for.
        self.run_command(*drain, "--wait-empty", "0")
        undrain = ("set", self.provider(harness.T4), "--undrain")
        with self.passes():
            self.run_command(*undrain, "--wait")
        self.assertNotIn(names.DRAINED_TRAIT, self.traits(harness.T4))
        self.run_command(*drain)
        self.run_pass()
        self.assertEqual(
            [[harness.T4, "undrained", ""]], self.run_command(*undrain)
        )
        self.assertEqual(
            [[harness.T4, "unchanged", "it was not drained"]],
            self.run_command(*undrain),
        )
        self.run_pass()
        self.assertNotIn(names.DRAINED_TRAIT, self.traits(harness.T4))

    @pytest.mark.long
    def test_a_wait_that_ends_too_early(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        waits = ("--wait", "--wait-empty", "0")
        words = ("set", CARD, "--drain", *waits, "--reason", "r")
        with self.passes():
            status, out, err = self.execute(*words)
        self.assertEqual(1, status)
        self.assertIn("drained", out)
        self.assertIn(f"in use by {server['id']}", err)

    @pytest.mark.long
    def test_a_faulted_device_is_offered_again(self) -> None:
        self.start_host(harness.TWO_T4[0])
        faulted = device_notes.FaultNotes(self.state_dir())
        faulted.put(harness.T4, "its reset failed", None)
        self.run_pass()
        self.assertIn(names.FAULTED_TRAIT, self.traits(harness.T4))
        self.assertEqual(
            [[harness.T4, "healed", ""]], self.run_command("heal", CARD)
        )
        self.assertEqual(
            [[harness.T4, "unchanged", "it was not set aside"]],
            self.run_command("heal", CARD),
        )
        self.run_pass()
        self.assertNotIn(names.FAULTED_TRAIT, self.traits(harness.T4))

    @pytest.mark.long
    def test_the_servers_of_a_device_are_migrated(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.start_host(harness.TWO_T4[0], name="host2")
        self.power_off_to_move()
        server = self.boot(SMALL, host="host1")
        self.be_on("host1")
        words = ("--reason", "fan fails", "--migrate", "cold")
        with self.passes():
            rows = self.run_command("set", CARD, "--drain", *words)
        self.assertEqual([[harness.T4, "drained", "fan fails"]], rows)
        record = self.api.get_server(server["id"])
        self.assertEqual("host2", record["OS-EXT-SRV-ATTR:host"])
        self.assertEqual(
            {self.provider(harness.T4, "host2")}, set(self.allocations(server))
        )

    @pytest.mark.long
    def test_a_server_without_another_host_is_named(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.boot(SMALL, name="painter")
        words = ("--reason", "fan fails", "--migrate", "cold")
        with self.passes():
            status, _, err = self.execute("set", CARD, "--drain", *words)
        self.assertEqual(1, status)
        self.assertIn("painter: ", err)
        self.assertIn("NoValidHost", err)

    def test_callers_that_the_policy_refuses(self) -> None:
        self.start_host(harness.TWO_T4[0])
        devices = [self.provider(harness.T4)]
        user = context.RequestContext("joe", "films", roles=["member"])
        for answer in (
            self.endpoint.list_drains(user),
            self.endpoint.drain(user, devices, "r"),
            self.endpoint.undrain(user, devices),
            self.endpoint.heal(user, devices),
        ):
            self.assertIn("Policy doesn't allow", answer[rpc_names.REFUSED])
        self.assertEqual({}, dict(self.drains().read()))
        chief = context.RequestContext("ann", "films", roles=["admin"])
        # The author is the context's user, whatever the caller says.
        answer = self.endpoint.drain(chief, devices, "fan fails", author="bob")
        self.assertIn(rpc_names.RESULT, answer)
        note = self.drains().read()[harness.T4]
        self.assertEqual(("fan fails", "ann"), (note.reason, note.author))
        # A note of any length could not be read again.
        chief.user_name = "a" * 99999
        self.endpoint.drain(chief, devices, "fan fails")
        self.assertEqual("a" * 255, self.drains().read()[harness.T4].author)

    def test_requests_that_no_device_fits(self) -> None:
        self.start_host(harness.TWO_T4[0])
        chief = context.RequestContext("ann", "films", roles=["admin"])
        other = self.compute_rp_uuids["host1"]
        for answer, reason in (
            (self.endpoint.drain(chief, [other], "r"), "--force"),
            (self.endpoint.heal(chief, ["../etc"]), "'../etc' is not"),
            (
                self.endpoint.drain(chief, [self.provider(harness.T4)], " "),
                "1 to 255 characters",
            ),
        ):
            self.assertIn(reason, answer[rpc_names.REFUSED])
        status, _, err = self.execute("heal", "host1/0000:99:00.0")
        self.assertEqual(2, status, err)
        self.assertIn(harness.T4, err)


class LiveDrain(moving.LiveBase, DeviceCommandBase):
    CARDS = (harness.TWO_T4[0],)

    def test_the_servers_of_a_device_are_migrated_live(self) -> None:
        server = self.boot(SMALL, host="host1")
        words = ("--reason", "fan fails", "--wait-empty", "--migrate", "live")
        with self.passes():
            rows = self.run_command("set", CARD, "--drain", *words)
        self.assertEqual([[harness.T4, "drained", "fan fails"]], rows)
        self.assertEqual(1, len(self.destination_xmls))
        self.assert_holds(server, harness.T4, "host2")
        self.assertEqual({}, self.usages(harness.T4, "host1"))

    @pytest.mark.long
    def test_a_live_migration_that_fails_is_named(self) -> None:
        self.arrives = False
        self.boot(SMALL, host="host1", name="painter")
        words = (
            f"device set {CARD} --drain --reason 'fan fails' --migrate live"
        )
        with self.passes():
            self.write(words)
            refusal = exc.HTTPServiceUnavailable("no database")
            self.useFixture(
                fixtures.MockPatchObject(
                    instance_actions.InstanceActionsController,
                    "index",
                    side_effect=refusal,
                )
            )
            self.write(words)
        self.written.check("a migration that fails")


class NewerEndpoint:
    """The endpoint for devices of a later release."""

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version="1.9"
    )

    def list_unoffered(self, context: Any, deadline: str) -> dict[str, Any]:
        del context, deadline
        row = {"address": harness.T4, "model": "T4", "reason": "r", "news": 1}
        return {rpc_names.RESULT: [row]}

    def show_version(self, context: Any, deadline: str) -> dict[str, Any]:
        del context, deadline
        return {rpc_names.RESULT: [{"version": "1.1.0", "news": "yes"}]}


class SilentEndpoint:
    """The endpoint for devices of a host whose reading hangs."""

    target = NewerEndpoint.target

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.end = threading.Event()

    def list_unoffered(self, context: Any, deadline: str) -> dict[str, Any]:
        del context, deadline
        self.methods.append("list_unoffered")
        self.end.wait(60)
        return {rpc_names.RESULT: []}

    def show_version(self, context: Any, deadline: str) -> dict[str, Any]:
        del context, deadline
        self.methods.append("show_version")
        return {rpc_names.RESULT: [{"version": "1.1.0"}]}


class OlderEndpoint:
    """The endpoint for devices of version 1.2, which lists no drains."""

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version=rpc_names.DEVICE_VERSION
    )


class DrainNotes(DeviceCommandBase):
    """``device list`` and ``show`` have reason, author and age of a drain."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host(*harness.TWO_T4)
        self.start_host(harness.TWO_T4[0], name="host2")

    def drain(self, author: str = "ops") -> None:
        self.drains().put(harness.T4, "fan fails", author)
        self.run_pass()

    def list_devices(self) -> list[dict[str, Any]]:
        """Return the rows of ``device list --long``; one is drained."""
        status, out, err = self.execute("list", "--long", "-f", "json")
        self.assertEqual((0, ""), (status, err))
        rows: list[dict[str, Any]] = json.loads(out)
        return rows

    @pytest.mark.long
    def test_the_note_of_the_host(self) -> None:
        note = model.Drain(
            address=harness.T4,
            reason="fan fails",
            author="ops",
            when=(
                datetime.datetime.now(datetime.UTC)
                - datetime.timedelta(days=2, hours=1)
            ).isoformat(timespec="seconds"),
        )
        self.drains()._notes.write(note)
        self.run_pass()
        _, out, _ = self.execute("list")
        golden.check(golden.PLACE / "fleet/device-list-drained.txt", out)
        self.assertEqual(
            [
                {
                    "reason": "fan fails",
                    "author": "ops",
                    "since": note.when,
                    "unknown": None,
                }
            ],
            next(
                row["Drains"]
                for row in self.list_devices()
                if row["State"] == "drained"
            ),
        )
        status, out, _ = self.execute("show", CARD)
        self.assertEqual(0, status)
        self.assertIn("fan fails (ops, 2d)", out)

    @pytest.mark.long
    def test_only_hosts_with_a_drained_device_are_called(self) -> None:
        called: list[str] = []
        for name, compute in self.computes.items():
            marks = compute.driver._hooks.operations.by_name[
                "hot_attach"
            ].marks

            def read(name: str = name, read: Any = marks.read_drains) -> Any:
                called.append(name)
                return read()

            self.useFixture(
                fixtures.MockPatchObject(marks, "read_drains", read)
            )
        self.assertEqual([[]] * 3, [r["Drains"] for r in self.list_devices()])
        self.drain()
        self.list_devices()
        self.assertEqual(["host1"], called)

    @pytest.mark.long
    def test_notes_that_are_not_known(self) -> None:
        words = "device list --host host1 --long -f json -c Drains -c Fault"

        def show() -> None:
            self.write(words)
            self.write("device list -c Address -c State -c 'Still fits'")

        self.drain()
        notes = device_notes.FaultNotes(self.state_dir())
        notes.put(harness.T4_B, "its reset failed", None)
        self.run_pass()
        # Placement has the traits until the next pass.
        self.drains().remove([harness.T4])
        notes.heal([harness.T4_B])
        self.computes["host1"].driver._accel.host.refresh()
        show()
        self.limit("_TOTAL_SECONDS", 0.0)
        show()
        self.limit("_TOTAL_SECONDS", 60.0)
        self.limit("_HOST_SECONDS", 0.2)
        self.rpc_server().stop()
        self.limit("DELAY_S", 0.0)
        self.written.wait = "notes on devices"
        show()
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server="host1")
        server = rpc.get_server(target, [OlderEndpoint()])
        server.start()
        self.addCleanup(server.stop)
        self.limit("_HOST_SECONDS", 5.0)
        self.limit("DELAY_S", 9.0)
        show()
        service = self.api.get_services(binary="nova-compute", host="host1")
        self.api.put_service(service[0]["id"], {"forced_down": True})
        self.write(words)
        self.written.check("notes of hosts")


class HostLists(DeviceCommandBase):
    """Lists have what only nova-compute of a host knows."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host(*harness.TWO_T4, device_spec=[OFF])
        self.start_host(harness.TWO_T4[1], name="host2")

    def read(
        self, noun: str, *words: str, note: str = ""
    ) -> list[dict[str, Any]]:
        """Return the rows of a list; the table ends with a note."""
        _, table, err = self.execute("list", *words, noun=noun)
        self.assertEqual("", err)
        notes = [row for row in table.splitlines() if row[:1] not in "+|"]
        self.assertEqual(note, "\n".join(notes))
        _, out, _ = self.execute("list", *words, "-f", "json", noun=noun)
        rows: list[dict[str, Any]] = json.loads(out)
        return rows

    def stop(self, name: str) -> None:
        """Stop the RPC server of a nova-compute."""
        self.limit("_HOST_SECONDS", 1.5)
        self.rpc_server(name).stop()

    @pytest.mark.long
    def test_accelerators_that_are_not_offered(self) -> None:
        _, out, err = self.execute("list", "--all")
        self.assertEqual("", err)
        golden.check(golden.PLACE / "fleet/device-list-all.txt", out)
        reason = "device_spec says use off"
        rows = self.read("device", "--all", "--long", "--host", "host2")
        self.assertEqual(
            [("host2", harness.T4_B, "not offered", [], reason)],
            [
                (
                    row["Host"],
                    row["Address"],
                    row["State"],
                    row["Still fits"],
                    row["Not offered"],
                )
                for row in rows
            ],
        )

    @pytest.mark.long
    def test_hosts_with_such_accelerators(self) -> None:
        item = {
            "address": harness.T4_B,
            "model": "Tesla T4 16GB",
            "reason": "device_spec says use off",
        }
        self.assertEqual(
            [("host1", 1, [item]), ("host2", 0, [item])],
            [
                (row["Host"], row["Devices"], row["Not offered"])
                for row in self.read("host", "--long")
            ],
        )

    def test_two_releases_in_one_cloud(self) -> None:
        self.stop("host2")
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server="host2")
        server = rpc.get_server(target, [NewerEndpoint()])
        server.start()
        self.addCleanup(server.stop)
        self.assertEqual(
            {"host1": library_version.read(), "host2": "1.1.0"},
            {
                row["Host"]: row["Version"]
                for row in self.read("host", "--long")
            },
        )

    def test_a_host_that_does_not_answer(self) -> None:
        self.stop("host1")
        gap = (
            "Not known: accelerators that are not offered on host1 (host does"
            " not answer)."
        )
        host1, host2 = self.read("host", "--long", note=gap)
        self.assertIsNone(host1["Not offered"])
        self.assertIsNone(host1["Version"])
        self.assertEqual(1, len(host2["Not offered"]))
        self.assertEqual(2, len(self.read("device", "--all", note=gap)))

    @pytest.mark.long
    def test_a_silent_host_is_asked_once(self) -> None:
        """Not once for each of the columns that are read from it."""
        self.stop("host2")
        endpoint = SilentEndpoint()
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server="host2")
        server = rpc.get_server(target, [endpoint])
        server.start()
        self.addCleanup(server.stop)
        self.addCleanup(endpoint.end.set)
        gap = (
            "Not known: accelerators that are not offered on host2 (host does"
            " not answer)."
        )
        self.read("host", "--long", note=gap)
        self.assertEqual({"list_unoffered"}, {*endpoint.methods})

    @pytest.mark.long
    def test_the_whole_text_of_a_fault(self) -> None:
        text = "the scrub of 0000:3b:00.0 failed: exit status 7"
        device_notes.FaultNotes(self.state_dir()).put(harness.T4, text, None)
        self.run_pass()
        card, *_ = self.read("device", "--long")
        self.assertEqual(text, card["Fault"])
        _, out, _ = self.execute("show", CARD)
        self.assertIn(text, out)
        self.stop("host1")
        card, *_ = self.read("device", "--long")
        self.assertEqual(
            "its scrub after a server failed or was cut off; text unknown:"
            " host does not answer",
            card["Fault"],
        )
