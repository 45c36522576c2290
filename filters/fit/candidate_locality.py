# SPDX-License-Identifier: Apache-2.0
"""NVLink and PCIe affinity of a candidate's devices."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from filters.fit.rejection import Rejection
from nova_accel.geometry import topology
from nova_accel.model import flavors, names, providers

_REGION = re.compile(r"_region_[0-9]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDevice:
    """A device of a candidate, with the number of partitions allocated."""

    facts: providers.Provider
    units: int = 1

    @property
    def card(self) -> str:
        """Return the uuid of the physical card's provider.

        The provider of an FPGA region is a child of its card's provider;
        the provider of any other device is a child of the compute node's.
        """
        is_part = self.facts.parent not in ("", self.facts.root)
        return self.facts.parent if is_part else self.facts.uuid

    @property
    def address(self) -> str:
        """Return the card's address, empty if no name was read.

        ``host_accel_0000_41_00_0`` and ``host_accel_0000_41_00_0_region_1``
        give ``0000_41_00_0``. Placement stores the address nowhere else: the
        provider's uuid is a hash of it.
        """
        address = self.facts.name.rpartition(names.PROVIDER_MARK)[2]
        return _REGION.sub("", address)

    @property
    def traits(self) -> frozenset[str]:
        """Return the provider's traits."""
        return self.facts.traits

    @property
    def nodes(self) -> frozenset[str]:
        """Return the NUMA nodes in the traits: one, or none."""
        return topology.trait_values(self.traits, names.NUMA_PREFIX)


def find_rejection(
    locality: flavors.Locality, devices: Sequence[CandidateDevice]
) -> Rejection | None:
    """Return why a locality policy forbids these devices together.

    None if it does not, or if data of a device are missing.
    """
    if locality is flavors.Locality.ANY:
        return None
    if locality is flavors.Locality.DIFFERENT_CARD:
        for device in devices:
            if device.units > 1:
                return Rejection(
                    providers=(device.facts,),
                    cause=f"{device.units} of one card",
                )
    # Sorted, so that a pair gives one text whichever group each serves.
    in_order = sorted(devices, key=lambda device: device.facts.label)
    for first, second in itertools.combinations(in_order, 2):
        cause = topology.explain_mismatch(locality, first, second)
        if cause:
            return Rejection(
                providers=(first.facts, second.facts),
                cause=cause,
                separator=" and ",
            )
    return None
