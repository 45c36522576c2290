# SPDX-License-Identifier: Apache-2.0
"""Hot attach as an operation that nova-compute loads by an entry point."""

import contextlib
from typing import Any

from nova_accel.discovery import device_marks, scan
from virt_hooks.attach import (
    attach_allocations,
    attach_devices,
    attach_evacuated,
    attach_recovery,
    attach_rpc,
    attach_show,
    device_rpc,
    hot_attach,
)
from virt_hooks.operations import extra_operations


class AttachOperation:
    """``extra_operations.ExtraOperation`` of hot attach, and its objects.

    Requests for servers and for devices come over one RPC server.
    """

    def __init__(self, context: extra_operations.OperationContext) -> None:
        partitions = context.partitions
        allocations = attach_allocations.AttachAllocations(context.virtapi)
        devices = attach_devices.AttachDevices(partitions, allocations)
        self._evacuated = attach_evacuated.EvacuatedAttachments(
            allocations, devices
        )
        self._recovery = attach_recovery.AttachRecovery(
            partitions, allocations
        )
        self.hot_attach = hot_attach.HotAttach(
            partitions,
            allocations,
            context.moves,
            self._recovery,
            devices,
            context.build_metadata,
            context.layouts,
        )
        self.attach_show = attach_show.AttachShow(partitions, self._recovery)
        self.attach_endpoint = attach_rpc.Endpoint(
            self.hot_attach, self.attach_show
        )
        self.marks = _build_marks(context)
        self.device_endpoint = device_rpc.DeviceEndpoint(
            partitions.accel, self.marks, partitions.wake_ups.wake
        )
        self.rpc_server = attach_rpc.RpcServer(
            self.attach_endpoint, self.device_endpoint
        )

    def start(self, host: str) -> None:
        """Accept calls over RPC to this host."""
        self.rpc_server.start(host)

    def stop(self) -> None:
        """Accept no more calls, and wait until the accepted ones end."""
        self.rpc_server.stop()

    def recover_at_start(self) -> None:
        """Recover the attachments that a killed service left."""
        self._recovery.recover_at_start()

    def recover(self) -> None:
        """Recover interrupted attachments."""
        self._recovery.recover()

    def carried(
        self, context: Any, instance: Any
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context in which an evacuated server is spawned."""
        return self._evacuated.carried(context, instance)


def _build_marks(
    context: extra_operations.OperationContext,
) -> device_marks.DeviceMarks:
    accel = context.partitions.accel
    open_reader = accel.host.open_reader
    return device_marks.DeviceMarks(
        context.state_dir,
        open_reader,
        lambda: scan.read(open_reader(), accel.drivers, accel.rules),
        accel.faults,
    )
