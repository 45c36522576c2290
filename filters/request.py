# SPDX-License-Identifier: Apache-2.0
"""Accelerator groups of a request, parsed from its extra specs."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, names

UNSUFFIXED = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRequest:
    """The groups of one server that ask for accelerators.

    ``placing`` is how the flavor chooses among devices; ``preferred`` are,
    by a group's suffix, traits of devices that come first for it, as of
    regions that hold its function already.
    """

    groups: tuple[flavors.RequestGroup, ...] = ()
    placing: flavors.PlacementPolicy = flavors.USUAL_PLACING
    preferred: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def classes(self) -> frozenset[str]:
        """Return every resource class the groups ask for."""
        return frozenset(
            name for group in self.groups for name in group.resources
        )


NOTHING = AcceleratorRequest()


def parse_request(extra_specs: Mapping[str, str]) -> AcceleratorRequest:
    """Return what a flavor asks of accelerators, groups by suffix.

    A group asks for one if it names a class that only accelerators have,
    or requires one of this library's traits. What Nova ignores (an amount
    that is no number, a trait neither required nor forbidden) is ignored.

    :raises MalformedError: an ``accelerator:`` extra spec of a flavor that
        asks for accelerators has a value that is not allowed.
    """
    groups = (_ours(group) for group in flavors.parse_groups(extra_specs))
    found = tuple(group for group in groups if group is not None)
    if not found:
        return NOTHING
    return AcceleratorRequest(
        groups=found, placing=flavors.parse_placing(extra_specs)
    )


def _ours(group: flavors.RequestGroup) -> flavors.RequestGroup | None:
    """Return what a group asks of accelerators, None if nothing.

    Of the unsuffixed group only what belongs to accelerators is kept: the
    rest is the server's own, and its traits may be met by any provider of
    the host, so they say nothing about the accelerator.
    """
    unsuffixed = group.suffix == UNSUFFIXED
    resources = {
        name: amount
        for name, amount in sorted(group.resources.items())
        if amount and (not unsuffixed or pci_ids.is_accelerator(name))
    }
    required = frozenset() if unsuffixed else group.required
    ours = any(map(pci_ids.is_accelerator, resources)) or any(
        names.is_ours(trait) and trait != names.NOVA_OWNER_TRAIT
        for trait in required
    )
    if not ours or not resources:
        return None
    return dataclasses.replace(
        group,
        resources=MappingProxyType(resources),
        required=required,
        forbidden=frozenset() if unsuffixed else group.forbidden,
    )
