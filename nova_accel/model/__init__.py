# SPDX-License-Identifier: Apache-2.0
"""Value types of the library. No I/O.

The package re-exports the types of ``device``: ``from nova_accel import
model``, then ``model.Device``.
"""

from nova_accel.model.device import (
    NOTED,
    UNDIVIDED,
    UNKNOWN,
    Allocations,
    Bitstream,
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
    Note,
    Partition,
    Problem,
    Profile,
    PublishedClaim,
    Region,
    Slot,
    Span,
)

__all__ = [
    "NOTED",
    "UNDIVIDED",
    "UNKNOWN",
    "Allocations",
    "Bitstream",
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
    "Note",
    "Partition",
    "Problem",
    "Profile",
    "PublishedClaim",
    "Region",
    "Slot",
    "Span",
]
