# SPDX-License-Identifier: Apache-2.0
"""Reasons why Placement has no candidate for a request."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from filters.placement import queries
from nova_accel import errors
from nova_accel.model import flavors, providers
from nova_accel.model.names import OWNER_TRAIT, PIN_PREFIX
from placement_sync.client import provider_records
from placement_sync.client.provider_records import Get

# Lines of one explanation; a cloud has more devices than a log needs.
_MAX_LINES = 20
# Hosts whose cards get their names in it, in one query each.
_MAX_NAMED = 4
# Contains a host's name and a PCI address, which a server's owner must not
# learn.
_PIN = re.compile(rf"\b{PIN_PREFIX}\w+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupRefusal:
    """Reason why a group has no candidate on any host.

    ``summary`` names the requested resources; it is short, as Nova keeps
    255 characters of a fault. ``details`` are for the operator: free units
    of all providers, then one line per provider.
    """

    group: flavors.RequestGroup
    summary: str
    details: tuple[str, ...] = ()

    @property
    def fault(self) -> str:
        """Return the refusal for the server's owner.

        Without hosts, devices and capacities of the cloud.
        """
        return _PIN.sub("one device", self.summary)

    def __str__(self) -> str:
        """Return the refusal for the log, with the details."""
        return "; ".join((self.summary, *self.details))


def find_refusal(get: Get, group: flavors.RequestGroup) -> GroupRefusal | None:
    """Return why Placement has no candidate, None if it may have one.

    The group is queried alone, so a refusal is certain: no host can serve
    a request if it can't serve one of its groups. One short query; some
    of less than 1 MB if there is no candidate.

    :raises ServiceError: Placement did not respond.
    """
    try:
        if queries.has_candidate(get, group):
            return None
    except errors.ServiceError as error:
        unknown = provider_records.unknown_names(error)
        if not unknown:
            raise
        return GroupRefusal(
            group=group,
            summary=f"no accelerator ever offered {unknown};"
            " check the spelling in the flavor's extra specs",
        )
    return _explain(get, group)


def _explain(get: Get, group: flavors.RequestGroup) -> GroupRefusal:
    any_traits = dataclasses.replace(
        group, required=frozenset(), forbidden=frozenset()
    )
    sample: dict[str, providers.Provider] = {}
    try:
        if OWNER_TRAIT not in group.forbidden:
            sample, is_complete = queries.fetch_sample(get, group)
            is_complete &= group.required == group.forbidden == frozenset()
        if not sample:
            sample, is_complete = queries.fetch_sample(get, any_traits)
        names = _fetch_names(get, sample.values())
    except errors.ServiceError as error:
        return GroupRefusal(
            group=group,
            summary=f"no accelerator serves {group}",
            details=(str(error),),
        )
    return describe(group, sample.values(), names, is_complete=is_complete)


def _fetch_names(
    get: Get, sample: Iterable[providers.Provider]
) -> dict[str, str]:
    """Return names of the providers of the first hosts, by uuid."""
    roots = dict.fromkeys(provider.root for provider in sample)
    return {
        provider.uuid: provider.name
        for root in [*roots][:_MAX_NAMED]
        for provider in provider_records.list_with_trait(
            get, OWNER_TRAIT, root
        )
    }


def describe(
    group: flavors.RequestGroup,
    accelerators: Iterable[providers.Provider],
    names: Mapping[str, str],
    *,
    is_complete: bool = True,
) -> GroupRefusal:
    """Return why none of the accelerators serves a group.

    :param names: providers' names by uuid, for the details.
    :param is_complete: whether these are all accelerators of the cloud.
    """
    with_class = sorted(
        (
            dataclasses.replace(p, name=names.get(p.uuid, p.name))
            for p in accelerators
            if group.resources.keys() & p.capacities.keys()
        ),
        key=lambda p: p.label,
    )
    has_room = (
        f"has room for {group}; see max_unit, min_unit and step_size of"
        " its inventories"
    )
    lines = [
        f"{p.label}:"
        f" {describe_missing(group, p.traits, p.capacities) or has_room}"
        for p in with_class
    ]
    with_traits = [
        p for p in with_class if not _list_trait_causes(group, p.traits)
    ]
    totals = (
        [_describe_totals(group, with_traits or with_class)]
        if with_class
        else []
    )
    notes = [] if is_complete else ["only some hosts were read"]
    return GroupRefusal(
        group=group,
        summary=_summarize(group, with_class, with_traits, is_complete),
        details=(*notes, *totals, *limit_lines(lines, _MAX_LINES)),
    )


def describe_missing(
    group: flavors.RequestGroup,
    traits: frozenset[str],
    capacities: Mapping[str, providers.ClassCapacity],
) -> str:
    """Return what a provider lacks for a group, empty if it has room.

    If the flavor names another device, nothing else is returned.
    """
    pins = sorted(
        trait
        for trait in group.required - traits
        if trait.startswith(PIN_PREFIX)
    )
    if pins:
        return f"is not the device of {', '.join(pins)}"
    causes = _list_trait_causes(group, traits)
    for name, amount in group.resources.items():
        if name not in capacities:
            causes.append(f"has no {name}")
        elif amount > capacities[name].free:
            causes.append(f"{name} {capacities[name]}, {amount} needed")
    return ", ".join(causes)


def limit_lines(lines: Iterable[str], limit: int) -> list[str]:
    """Return the first different lines, and the number of the others."""
    unique = list(dict.fromkeys(lines))
    rest = len(unique) - limit
    return unique if rest <= 0 else [*unique[:limit], f"and {rest} more"]


def _list_trait_causes(
    group: flavors.RequestGroup, traits: frozenset[str]
) -> list[str]:
    return [
        f"does not offer {trait} now"
        for trait in sorted(group.required - traits)
    ] + [
        f"has {trait}, which the flavor forbids"
        for trait in sorted(group.forbidden & traits)
    ]


def _summarize(
    group: flavors.RequestGroup,
    with_class: Sequence[providers.Provider],
    with_traits: Sequence[providers.Provider],
    is_complete: bool,
) -> str:
    """Return why no provider serves a group, without hosts.

    Other hosts may have the class; the traits were searched on all.
    """
    classes = ", ".join(group.resources)
    has_traits = bool(group.required or group.forbidden)
    if not with_class and is_complete:
        return f"no accelerator offers {classes}"
    if not with_traits and (has_traits or is_complete):
        traits = sorted(group.required) + [
            f"not {trait}" for trait in sorted(group.forbidden)
        ]
        return f"no accelerator offers {classes} with {', '.join(traits)} now"
    return f"no accelerator has room for {group}"


def _describe_totals(
    group: flavors.RequestGroup,
    accelerators: Sequence[providers.Provider],
) -> str:
    """Return the free units of all providers: ``VGPU 0 of 8 left on 2``."""
    parts = []
    for name in group.resources:
        capacities = [
            p.capacities[name] for p in accelerators if name in p.capacities
        ]
        total = providers.ClassCapacity(
            capacity=sum(c.capacity for c in capacities),
            used=sum(c.capacity - c.free for c in capacities),
        )
        largest = max((c.free for c in capacities), default=0)
        parts.append(
            f"{name} {total} on {len(capacities)}"
            + (f", at most {largest} on one" if len(capacities) > 1 else "")
        )
    return "; ".join(parts)
