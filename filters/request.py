# SPDX-License-Identifier: Apache-2.0
"""Accelerator groups of a request, parsed from a flavor's extra specs."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, names

UNSUFFIXED = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRequest:
    """The request groups of one server that need accelerators.

    ``policy`` is the flavor's choice among devices that have room.
    ``preferred_traits`` are, by group suffix, traits of devices to try
    first: for example of FPGA regions that hold the group's function.
    """

    groups: tuple[flavors.RequestGroup, ...] = ()
    policy: flavors.SelectionPolicy = flavors.DEFAULT_POLICY
    preferred_traits: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )

    @property
    def classes(self) -> frozenset[str]:
        """Return the resource classes of all groups."""
        return frozenset(
            name for group in self.groups for name in group.resources
        )


NO_ACCELERATORS = AcceleratorRequest()


def parse_request(extra_specs: Mapping[str, str]) -> AcceleratorRequest:
    """Return the accelerator groups of a flavor, sorted by suffix.

    A group needs an accelerator if it names a resource class that only
    accelerators have, or requires one of this library's traits. Extra specs
    that Nova ignores (an amount that is no number, a trait neither required
    nor forbidden) are ignored.

    :raises MalformedError: an ``accelerator:`` extra spec of a flavor that
        requests accelerators has a value that is not allowed.
    """
    selected = map(_select_accelerators, flavors.parse_groups(extra_specs))
    groups = tuple(group for group in selected if group is not None)
    if not groups:
        return NO_ACCELERATORS
    return AcceleratorRequest(
        groups=groups, policy=flavors.parse_selection_policy(extra_specs)
    )


def _select_accelerators(
    group: flavors.RequestGroup,
) -> flavors.RequestGroup | None:
    """Return the part of a group that accelerators serve, None if empty.

    Of the unsuffixed group only resource classes of accelerators remain:
    the others are the server's own, and its traits may be provided by any
    provider of the host, so they do not describe the accelerator.
    """
    is_unsuffixed = group.suffix == UNSUFFIXED
    resources = {
        name: amount
        for name, amount in sorted(group.resources.items())
        if amount and (not is_unsuffixed or pci_ids.is_accelerator(name))
    }
    required = frozenset() if is_unsuffixed else group.required
    is_accelerator = any(map(pci_ids.is_accelerator, resources)) or any(
        names.is_managed_trait(trait) and trait != names.NOVA_OWNER_TRAIT
        for trait in required
    )
    if not is_accelerator or not resources:
        return None
    return dataclasses.replace(
        group,
        resources=MappingProxyType(resources),
        required=required,
        forbidden=frozenset() if is_unsuffixed else group.forbidden,
    )
