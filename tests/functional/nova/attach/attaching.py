# SPDX-License-Identifier: Apache-2.0
"""Base class of the tests of hot attach and detach."""

import contextlib
import io
import json
from typing import Any

from nova import context, objects

from nova_accel.cli import commands
from nova_accel.model import attachment
from placement_sync.client import compute_rpc
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import operations, technologies
from virt_hooks.instance import instance_request

# What fits once more on a host of a technology, by that one's name.
_MORE = {
    "mdev": "T4-4Q",
    "typed_vf": "L40S-8Q",
    "whole": "10de:1e07",
    "region": test_fpga.ANY,
}
NAMES = ("NAME", "PROFILE", "DEVICE", "STATE")


class AttachingTestBase(operations.OperationsTestBase):
    """Servers that are given one more profile, over Nova's message bus."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(device_detach_timeout=1, group="libvirt")

    def profile(self) -> str:
        """Return what a server of the host's technology may have more."""
        if self.technology is technologies.PLAIN_VF:
            (trait,) = self.profiles(test_typed_vfs.S7150)
            return trait
        return _MORE[self.technology.name]

    def ask(self, server: Any, method: str, **words: Any) -> Any:
        """Return what nova-compute answers on the bus."""
        found = compute_rpc.ComputeRpc(())
        host = self.host_of(server)
        return found.call(host, method, False, server=server["id"], **words)

    def attach(self, server: Any, profile: str) -> Any:
        return self.ask(server, "attach", **self.attach_arguments(profile))

    def attach_arguments(self, profile: str) -> dict[str, str]:
        """Return what is asked for: a region is to hold something, too."""
        is_region = profile == test_fpga.ANY
        image = self.image_of(test_fpga.BLUE) if is_region else ""
        return {"profile": profile, "bitstream": image}

    def detach(self, server: Any, name: str = "") -> Any:
        return self.ask(server, "detach", name=name)

    def refused(self, server: Any, method: str, **words: Any) -> str:
        """Return why nova-compute refuses."""
        with self.assertRaises(compute_rpc.RpcRefusedError) as caught:
            self.ask(server, method, **words)
        return str(caught.exception)

    def shown(self, server: Any) -> list[tuple[str, str, str]]:
        """Return name, profile and state of what a server has."""
        told = self.ask(server, "show")
        return [
            (each["name"], each["profile"], each["state"])
            for each in told["accelerators"]
        ]

    def attachments(self, server: Any) -> tuple[attachment.Attachment, ...]:
        return instance_request.attachments_of(self.instance(server))

    def instance(self, server: Any) -> Any:
        return objects.Instance.get_by_uuid(
            context.get_admin_context(),
            server["id"],
            expected_attrs=["system_metadata", "resources", "flavor"],
        )

    def everything(self, server: Any) -> Any:
        """Return all that a refusal must leave as it was."""
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
        """Return the slots that Nova's tracker has handed out."""
        tracker = self.computes[host].manager.rt
        return {
            (provider, slot.identifier)
            for provider, classes in tracker.assigned_resources.items()
            for slots in classes.values()
            for slot in slots
        }

    def run_command(self, *words: str, status: int = 0) -> str:
        """Return what the command printed; its error if it is to fail."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            found = commands.main(["server", *words])
        self.assertEqual(status, found, out.getvalue() + err.getvalue())
        return err.getvalue() if status else out.getvalue()

    def command_json(self, *words: str) -> Any:
        return json.loads(self.run_command(*words, "--json"))
