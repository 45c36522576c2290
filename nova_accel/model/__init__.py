# SPDX-License-Identifier: Apache-2.0
"""Nouns of the library: devices, claims, providers, groups. No I/O.

The types of ``device`` are used everywhere, so the package has their names:
``from nova_accel import model``, then ``model.Device``.
"""

from nova_accel.model.device import (
    UNDIVIDED,
    UNKNOWN,
    Bitstream,
    Booked,
    Claim,
    ClaimKey,
    ClaimState,
    ClassKey,
    Device,
    Drain,
    Fault,
    Geometry,
    HostState,
    Instance,
    InstanceKind,
    Layout,
    Partition,
    Problem,
    Profile,
    Region,
    Slot,
    Span,
)

__all__ = [
    "UNDIVIDED",
    "UNKNOWN",
    "Bitstream",
    "Booked",
    "Claim",
    "ClaimKey",
    "ClaimState",
    "ClassKey",
    "Device",
    "Drain",
    "Fault",
    "Geometry",
    "HostState",
    "Instance",
    "InstanceKind",
    "Layout",
    "Partition",
    "Problem",
    "Profile",
    "Region",
    "Slot",
    "Span",
]
