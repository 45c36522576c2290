# SPDX-License-Identifier: Apache-2.0
"""Value types of the library. No I/O.

- ``device``: devices, profiles, partitions, slots, claims
- ``pci``: PCI addresses and functions
- ``domains``: host devices of a libvirt domain
- ``providers``: resource providers and their inventories
- ``names``: names of traits, classes and providers; UUIDs
- ``flavors``: request groups and options of a flavor
- ``extra_specs``: table of the ``accelerator:`` extra specs
- ``actions``: changes of a host
- ``attachment``: hot-attached profiles in system_metadata
- ``rpc_names``: topic, namespace and version of the RPC endpoint
- ``json_codec``: dataclasses as JSON documents with a version

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
