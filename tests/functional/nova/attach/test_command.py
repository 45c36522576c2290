# SPDX-License-Identifier: Apache-2.0
"""``openstack accel server`` works over Nova's API and message bus."""

import re
import uuid
from typing import Any
from unittest import mock

import fixtures
import oslo_messaging
import pytest
from nova import context, exception, rpc

from nova_accel.host import nvml_gpus
from nova_accel.model import rpc_names
from placement_sync.cli import progress
from placement_sync.client import cloud_client, nova_api, rest
from placement_sync.fleet import compute_rpc as client_bus
from tests.functional.nova.attach import attaching
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness, technologies
from tests.functional.sync.messages import transcript

PROFILE = "T4-4Q"
FOUR = harness.vgpu_group("_A", "4Q")


class EndpointV1:
    """The endpoint of version 1.0, which takes no deadline."""

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version="1.0"
    )

    def show(self, context: Any, server: str) -> dict[str, Any]:
        return {rpc_names.RESULT: server}


class Command(attaching.AttachingTestBase):
    technology = technologies.MDEV

    @pytest.fixture(autouse=True)
    def _capture(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(scheduled.without_keystone())

    def boot_server(self) -> Any:
        self.start_hosts("host1")
        return self.boot(FOUR, name="painter")

    def run_command(self, *words: str, status: int = 0) -> str:
        endpoint = ("--compute-endpoint", self.api_fixture.base_url)
        arguments = () if "--host" in words else endpoint
        return super().run_command(*words, *arguments, status=status)

    def test_attach_show_and_detach(self) -> None:
        server = self.boot_server()
        output = self.run_command("attach", "painter", "--profile", PROFILE)
        self.assertIn("Attached attached-1 of 0000:3", output)
        table = self.run_command("show", server["id"])
        self.assertIn("on host1: active", table)
        for name in ("(flavor)", "attached-1"):
            self.assertRegex(
                table,
                rf"{re.escape(name)} +\| T4-4Q +\| 0000:3\S+ +\| in the guest",
            )
        own, attached = self.command_json(
            "show", server["id"], "--host", "host1"
        )
        self.assertEqual(
            ("(flavor)", "attached-1"), (own["Name"], attached["Name"])
        )
        self.assertIn(
            attached["Provider"],
            {each["name"] for each in self.providers("host1").values()},
        )
        output = self.run_command("detach", "painter", attached["Handle"])
        self.assertIn("Detached attached-1 (T4-4Q)", output)
        self.assert_agreement("detach", is_passed=True)
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_show_has_licence_and_driver_of_the_guest(self) -> None:
        server = self.boot_server()
        (mdev,) = self.mdevs_of(server)
        vgpu = nvml_gpus.NvmlVgpu(
            server=server["id"],
            mdev=mdev,
            license="unlicensed_restricted",
            driver="550.163.01",
        )
        card = self.card_of(server)
        detector = self.computes["host1"].driver._accel.host._detector
        detector.gpus = {card: nvml_gpus.NvmlGpu(address=card, vgpus=(vgpu,))}
        (accelerator,) = self.command_json("show", server["id"])
        self.assertEqual("unlicensed_restricted", accelerator["License"])
        self.assertEqual("550.163.01", accelerator["Guest driver"])
        table = self.run_command("show", server["id"])
        self.assertIn("| unlicensed_restricted | 550.163.01", table)

    def test_messages(self) -> None:
        # Nova chooses among several cards by chance.
        self.start_host(harness.TWO_T4[0])
        server = self.boot(FOUR, name="painter")
        self.boot({}, name="plain")
        written = transcript.Transcript(self.capsys, {})
        written.wait = "nova-compute on"
        self.useFixture(fixtures.MockPatchObject(progress, "DELAY_S", 0.0))
        endpoint = ("--compute-endpoint", self.api_fixture.base_url)

        def run_all(lines: str) -> None:
            for line in lines.strip().splitlines():
                written.run(line, *(endpoint * ("--host" not in line)))

        run_all(
            """\
server show sculptor
server show painter --host host1
server attach painter --profile X
server detach painter
server detach painter T4-4Q
server attach painter --profile T4-4Q
server show painter
server detach painter
server show plain
"""
        )
        service = self.api.get_services(binary="nova-compute", host="host1")
        self.api.put_service(service[0]["id"], {"forced_down": True})
        run_all("server show plain")
        self.flags(rpc_response_timeout=1)
        run_all(f"server show {server['id']} --host host9")
        written.check("servers of a host")

    def boot_for(self, project: str, name: str) -> Any:
        """Return a new server of a project."""
        own, self.api.project_id = self.api.project_id, project
        try:
            return self.boot(FOUR, name=name)
        finally:
            self.api.project_id = own

    def refuse_commands(self, server: str) -> set[str]:
        """Return how each command refuses a server."""
        return {
            self.run_command(action, server, *words, status=2)
            for action, *words in (
                ("show",),
                ("attach", "--profile", PROFILE),
                ("detach",),
            )
        }

    @pytest.mark.long
    def test_a_name_is_one_of_the_own_project(self) -> None:
        own = self.boot_server()
        others = [self.boot_for("films", n) for n in ("painter", "sculptor")]
        before = [self.collect_state(other) for other in others]
        (reason,) = self.refuse_commands("sculptor")
        self.assertIn("'sculptor' is not a server of your own", reason)
        self.run_command("attach", "painter", "--profile", PROFILE)
        self.assertEqual(2, len(self.list_accelerators(own)))
        self.run_command("detach", "painter")
        deleted = str(uuid.uuid4())
        self.api.put_server(own["id"], {"server": {"name": deleted}})
        (reason,) = self.refuse_commands(deleted)
        self.assertIn("is not a server of this cloud", reason)
        for name in ("painter", "painter"):
            self.boot(FOUR, name=name)
        (reason,) = self.refuse_commands("painter")
        self.assertIn("several servers have that name", reason)
        after = [self.collect_state(other) for other in others]
        self.assertEqual(
            [state[0] for state in before], [state[0] for state in after]
        )
        self.assert_agreement("names", is_passed=True)

    def actions(self, server: Any) -> list[tuple[str, str, str, str]]:
        """Return action, event, host and result of accelerator actions."""
        summaries = self.api.get_instance_actions(server["id"])
        path = f"/servers/{server['id']}/os-instance-actions"
        details = [
            self.api.api_get(f"{path}/{summary['request_id']}").body
            for summary in reversed(summaries)
            if summary["action"].endswith("_accelerator")
        ]
        return [
            (action["action"], event["event"], event["host"], event["result"])
            for detail in details
            for action in [detail["instanceAction"]]
            for event in action["events"]
        ]

    @pytest.mark.long
    def test_attach_and_detach_are_instance_actions(self) -> None:
        server = self.boot_server()
        self.run_command("attach", "painter", "--profile", PROFILE)
        nova = cloud_client.from_endpoint(
            self.api_fixture.base_url, service=rest.COMPUTE
        )
        self.assertEqual("", nova_api.read_failure(nova, server["id"]))
        self.run_command("attach", "painter", "--profile", "X", status=1)
        self.assertIn("one of: ", self.reason(server))
        reason = nova_api.read_failure(nova, server["id"])
        self.assertIn("one of: ", reason)
        self.run_command("detach", "painter")
        attach = ("attach_accelerator", "compute_attach_accelerator", "host1")
        detach = ("detach_accelerator", "compute_detach_accelerator", "host1")
        self.assertEqual(
            [(*attach, "Success"), (*attach, "Error"), (*detach, "Success")],
            self.actions(server),
        )

    def test_callers_that_the_policy_refuses(self) -> None:
        server = self.boot_server()
        endpoint = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .attach_endpoint
        )
        own = self.instance(server).project_id
        for project, reason in (
            (own, "Policy doesn't allow"),
            ("films", "there is no such server"),
        ):
            user = context.RequestContext("joe", project, roles=["member"])
            for answer in (
                endpoint.attach(user, server["id"], PROFILE),
                endpoint.detach(user, server["id"], ""),
            ):
                self.assertIn(reason, answer[rpc_names.REFUSED])
        chief = context.RequestContext("ann", "films", roles=["admin"])
        self.assertIn(rpc_names.RESULT, endpoint.show(chief, server["id"]))
        self.assert_agreement("refusals")

    @pytest.mark.long
    def test_a_role_counts_in_its_own_project_only(self) -> None:
        server = self.boot_server()
        endpoint = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .attach_endpoint
        )
        own = self.instance(server).project_id
        self.policy.set_rules(
            {
                f"nova_accel:server:{action}": "role:artist"
                for action in ("show", "attach", "detach")
            },
            overwrite=False,
        )
        other = context.RequestContext("joe", "films", roles=["artist"])
        for answer in (
            endpoint.show(other, server["id"]),
            endpoint.attach(other, server["id"], PROFILE),
            endpoint.detach(other, server["id"], ""),
        ):
            self.assertIn("there is no such server", answer[rpc_names.REFUSED])
        artist = context.RequestContext("ann", own, roles=["artist"])
        self.assertIn(rpc_names.RESULT, endpoint.show(artist, server["id"]))
        self.assert_agreement("refusals")

    @pytest.mark.long
    def test_a_rule_may_name_the_owner(self) -> None:
        """The rule applies; an owner does not see details of the host."""
        self.start_host(harness.TWO_T4[0])
        server = self.boot(harness.vgpu_group("_A", "16Q"))
        endpoint = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .attach_endpoint
        )
        instance = self.instance(server)
        own, owner = instance.project_id, instance.user_id
        owns = "user_id:%(user_id)s and project_id:%(project_id)s"
        self.policy.set_rules(
            {
                f"nova_accel:server:{action}": f"role:admin or ({owns})"
                for action in ("show", "attach", "detach")
            }
            | {"nova_accel:server:details": "role:admin"},
            overwrite=False,
        )
        other = context.RequestContext("joe", own, roles=["member"])
        refused = endpoint.show(other, server["id"])[rpc_names.REFUSED]
        self.assertIn("Policy doesn't allow", refused)
        user = context.RequestContext(owner, own, roles=["member"])
        answer = endpoint.show(user, server["id"])[rpc_names.RESULT]
        (accelerator,) = answer["accelerators"]
        self.assertEqual("T4-16Q", accelerator["profile"])
        for field in (
            answer["host"],
            accelerator["device"],
            accelerator["handle"],
        ):
            self.assertEqual("", field)
        refused = endpoint.attach(user, server["id"], "T4-16Q")
        self.assertEqual(
            f"accelerators of server {server['id']}: no room on its host for"
            " T4-16Q now",
            refused[rpc_names.REFUSED],
        )
        for error, word in (
            (exception.ComputeHostNotFound(host="host1"), "could not answer"),
            (exception.InstanceNotFound(instance_id="a"), "not be found"),
        ):
            with mock.patch.object(
                self.computes["host1"]
                .driver._hooks.operations.by_name["hot_attach"]
                .hot_attach,
                "attach",
                side_effect=error,
            ):
                answer = endpoint.attach(user, server["id"], "T4-16Q")
            self.assertIn(word, answer[rpc_names.REFUSED])
            self.assertNotIn("host1", answer[rpc_names.REFUSED])
        chief = context.RequestContext("ann", "films", roles=["admin"])
        refused = endpoint.attach(chief, server["id"], "T4-16Q")
        self.assertIn(harness.T4, refused[rpc_names.REFUSED])
        self.assert_agreement("refusals")

    @pytest.mark.long
    def test_a_late_request_is_not_carried_out(self) -> None:
        server = self.boot_server()
        before = self.collect_state(server)
        endpoint = (
            self.computes["host1"]
            .driver._hooks.operations.by_name["hot_attach"]
            .attach_endpoint
        )
        chief = context.get_admin_context()
        for deadline, reason in (
            ("2026-01-31T12:00:00+00:00", "until 2026-01-31T12:00:00+00:00"),
            ("2026-01-31T12:00:00", "is not a deadline"),
            ("soon", "is not a deadline"),
        ):
            answer = endpoint.attach(
                chief, server["id"], PROFILE, deadline=deadline
            )
            self.assertIn(reason, answer[rpc_names.REFUSED])
            self.assertEqual(before, self.collect_state(server))
        later = "2999-01-31T12:00:00+01:00"
        answer = endpoint.attach(chief, server["id"], PROFILE, deadline=later)
        self.assertIn(rpc_names.RESULT, answer)
        # As callers of version 1.0 call it.
        self.assertIn(
            rpc_names.RESULT, endpoint.detach(chief, server["id"], "")
        )

    def test_an_older_nova_compute_is_called_without_deadline(self) -> None:
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server="older")
        server = rpc.get_server(target, [EndpointV1()])
        server.start()
        self.addCleanup(server.stop)
        result = client_bus.ComputeRpc(()).call(
            "older", "show", False, server="a"
        )
        self.assertEqual("a", result)

    @pytest.mark.long
    def test_states_in_which_nothing_is_attached(self) -> None:
        server = self.boot_server()
        for step, back, word in (
            (self.pause, self.unpause, "paused"),
            (self.suspend, self.resume, "suspended"),
            (self.rescue, self.unrescue, "rescued"),
        ):
            step(server)
            reason = self.refused(server, "attach", profile=PROFILE)
            self.assertIn(f"it is {word}", reason)
            back(server)
        self.assert_agreement("refusals", is_passed=True)

    @pytest.mark.long
    def test_a_card_that_is_full(self) -> None:
        """The refusal gives the reason for each card."""
        self.start_host(harness.TWO_T4[0])
        server = self.boot(harness.vgpu_group("_A", "16Q"))
        before = self.collect_state(server)
        reason = self.refused(server, "attach", profile="T4-16Q")
        self.assertIn("no device of host1 can give T4-16Q now", reason)
        self.assertIn(f"{harness.T4} has no place for T4-16Q", reason)
        self.assertEqual(before, self.collect_state(server))
        self.assert_agreement("a refusal", is_passed=True)

    @pytest.mark.long
    def test_attachments_of_a_server_whose_flavor_has_none(self) -> None:
        self.start_hosts("host1")
        server = self.boot({})
        self.attach(server, PROFILE)
        self.attach(server, harness.vgpu_trait("4Q"))
        self.assert_agreement("two attachments", is_passed=True)
        reason = self.refused(server, "detach", name="")
        self.assertIn("name one of attached-1, attached-2", reason)
        mdevs = self.mdevs_of(server)
        self.reboot_hard(server)
        self.assertEqual(sorted(mdevs), sorted(self.mdevs_of(server)))
        self.detach(server, "attached-1")
        self.assert_agreement("detach of the first", is_passed=True)
        self.attach(server, PROFILE)
        self.detach(server, "attached-2")
        self.detach(server)
        self.assert_agreement("detach of all", is_passed=True)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_profiles_of_one_card_keep_their_slots(self) -> None:
        """The attached profile is on the card of the flavor's profile."""
        self.start_host(
            technologies.TYPED_VF.cards[0],
        )
        server = self.boot(technologies.TYPED_VF.small(self))
        functions = self.functions_of(server)
        self.attach(server, "L40S-8Q")
        both = self.functions_of(server)
        self.reboot_hard(server)
        self.assertEqual(sorted(both), sorted(self.functions_of(server)))
        self.restart()
        self.run_periodics()
        self.detach(server)
        self.assertEqual(functions, self.functions_of(server))
        self.assert_agreement("detach", is_passed=True)

    @pytest.mark.long
    def test_a_region_and_its_bitstream(self) -> None:
        region = technologies.REGION
        self.start_host(
            *region.cards, harness.TWO_T4[0], **dict(region.settings)
        )
        server = self.boot({}, name="painter")
        before = self.collect_state(server)
        good = self.image_of(test_fpga.BLUE)
        other = self.image(test_fpga.RED, accelerator_interface_id="ab" * 16)
        strange = self.image(test_fpga.RED, owner="a stranger")
        for profile, bitstream, reason in (
            ("region", "", "one with a bitstream"),
            (PROFILE, good, "one of an FPGA region"),
            (test_fpga.ANY, other, "made for interface abab"),
            (test_fpga.ANY, strange, "a stranger"),
            (test_fpga.ANY, server["id"], "share the image"),
        ):
            with self.subTest(reason):
                words = {"profile": profile, "bitstream": bitstream}
                answer = self.refused(server, "attach", **words)
                self.assertIn(reason, answer)
                self.assertEqual(before, self.collect_state(server))
        arguments = ("--profile", test_fpga.INTERFACE, "--bitstream", good)
        for host_arguments in ((), ("--host", "host1")):
            answer = self.run_command(
                "attach", server["id"], *arguments, *host_arguments, status=2
            )
            self.assertIn("with your token", answer)
        self.assertEqual(before, self.collect_state(server))
        words = {"profile": test_fpga.INTERFACE, "bitstream": good}
        answer = self.call_rpc(server, "attach", **words)
        self.assertEqual("attached-1", answer["name"])
        self.assertRegex(answer["device"], "region-0$")
        self.assert_agreement("one region", is_passed=True)
        self.detach(server)
        self.assertEqual(before, self.collect_state(server))
        self.assert_agreement("none", is_passed=True)
