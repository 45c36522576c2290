# SPDX-License-Identifier: Apache-2.0
"""Base class of the tests of hot attach and detach."""

import contextlib
import io
import json
from typing import Any

from nova import context, objects

from nova_accel.model import attachment
from placement_sync.fleet import compute_rpc, host_bus
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import operations, technologies
from tests.functional.sync.commands import programs
from virt_hooks.instance import instance_request

# Profile that fits once more on a host, by the technology's name.
_SECOND_PROFILES = {
    "mdev": "T4-4Q",
    "typed_vf": "L40S-8Q",
    "whole": "10de:1e07",
    "region": test_fpga.ANY,
}
NAMES = ("NAME", "PROFILE", "DEVICE", "STATE")


class AttachingTestBase(operations.OperationsTestBase):
    """Servers to which a profile is attached, over Nova's message bus."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(device_detach_timeout=1, group="libvirt")

    def profile(self) -> str:
        """Return the profile that a server of the technology can attach."""
        if self.technology is technologies.PLAIN_VF:
            (trait,) = self.profiles(test_typed_vfs.S7150)
            return trait
        return _SECOND_PROFILES[self.technology.name]

    def call_rpc(self, server: Any, method: str, **words: Any) -> Any:
        """Return the answer of nova-compute on the bus."""
        rpc = compute_rpc.ComputeRpc(())
        host = self.host_of(server)
        return rpc.call(host, method, False, server=server["id"], **words)

    def attach(self, server: Any, profile: str) -> Any:
        return self.call_rpc(
            server, "attach", **self.attach_arguments(profile)
        )

    def attach_arguments(self, profile: str) -> dict[str, str]:
        """Return the RPC arguments; a region needs a bitstream, too."""
        is_region = profile == test_fpga.ANY
        image = self.image_of(test_fpga.BLUE) if is_region else ""
        return {"profile": profile, "bitstream": image}

    def detach(self, server: Any, name: str = "") -> Any:
        return self.call_rpc(server, "detach", name=name)

    def refused(self, server: Any, method: str, **words: Any) -> str:
        """Return why nova-compute refuses."""
        with self.assertRaises(host_bus.RpcRefusedError) as caught:
            self.call_rpc(server, method, **words)
        return str(caught.exception)

    def list_accelerators(self, server: Any) -> list[tuple[str, str, str]]:
        """Return name, profile and state of a server's accelerators."""
        answer = self.call_rpc(server, "show")
        return [
            (record["name"], record["profile"], record["state"])
            for record in answer["accelerators"]
        ]

    def attachments(self, server: Any) -> tuple[attachment.Attachment, ...]:
        return instance_request.attachments_of(self.instance(server))

    def instance(self, server: Any) -> Any:
        return objects.Instance.get_by_uuid(
            context.get_admin_context(),
            server["id"],
            expected_attrs=["system_metadata", "resources", "flavor"],
        )

    def collect_state(self, server: Any) -> Any:
        """Return all state that a refusal must not change."""
        host = self.host_of(server)
        instance = self.instance(server)
        simulated = self.hosts[host]
        mdevs = {
            name: record["in_use"]
            for name, record in simulated.mdevs().items()
        }
        return (
            self.allocations(server),
            self.slots(server),
            sorted(
                (c.handle, c.profile, c.state)
                for c in self.computes[host].driver._accel.claims()
            ),
            mdevs,
            sorted(
                k
                for k in instance.system_metadata
                if attachment.KEY_PREFIX in k
            ),
            instance.task_state,
            sorted(self.mdevs_of(server, host)),
            sorted(self.functions_of(server, host)),
            self.assigned(host),
        )

    def assigned(self, host: str) -> set[tuple[str, str]]:
        """Return the slots that Nova's tracker has assigned."""
        tracker = self.computes[host].manager.rt
        return {
            (provider, slot.identifier)
            for provider, classes in tracker.assigned_resources.items()
            for slots in classes.values()
            for slot in slots
        }

    def run_command(self, *words: str, status: int = 0) -> str:
        """Return the command's output; its error output if it must fail."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            exit_status = programs.main(["server", *words])
        self.assertEqual(status, exit_status, out.getvalue() + err.getvalue())
        return err.getvalue() if status else out.getvalue()

    def command_json(self, *words: str) -> Any:
        return json.loads(self.run_command(*words, "-f", "json"))
