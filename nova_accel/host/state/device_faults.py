# SPDX-License-Identifier: Apache-2.0
"""Devices that nova-compute sets aside, with or without a place for notes."""

import logging

from nova_accel import model
from nova_accel.host.state import faults

LOG = logging.getLogger(__name__)


class DeviceFaults:
    """Sets devices of any kind aside: cards, VFs and FPGA regions."""

    def __init__(self, notes: faults.FaultNotes | None) -> None:
        """Write to ``notes``; without them faults are logged only."""
        self.notes = notes

    def set_aside(
        self, address: str, reason: str, host: model.HostState
    ) -> None:
        """Note that a device must not be assigned, or log it.

        :param host: has the function of the device's region, if any.
        """
        device = host.device(address)
        region = device.region if device else None
        if self.notes is None:
            LOG.error("%s failed: %s", address, reason)
            return
        self.notes.put(address, reason, region.function if region else None)
