# SPDX-License-Identifier: Apache-2.0
"""Reasons why Placement has no candidate for a request."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from filters import provider_facts, request
from filters.placement import queries, responses
from nova_accel.model import flavors
from nova_accel.model.names import PIN_PREFIX

# Lines of one explanation; a cloud has more devices than a log needs.
_MAX_LINES = 20
# Names a host and a PCI address, which a server's owner must not learn.
_PIN = re.compile(rf"\b{PIN_PREFIX}\w+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupRefusal:
    """Why a group has no candidate anywhere.

    ``summary`` says what was asked, and it is short (Nova keeps 255
    characters of a fault). ``details`` are for the operator: how much is
    left in all, then one line per device.
    """

    group: flavors.RequestGroup
    summary: str
    details: tuple[str, ...] = ()

    @property
    def fault(self) -> str:
        """Return the refusal for the server's owner.

        Without hosts, devices and numbers of what the cloud has.
        """
        return _PIN.sub("one device", self.summary)

    def __str__(self) -> str:
        """Return the refusal for the log, devices and all."""
        return "; ".join((self.summary, *self.details))


def find_refusal(
    get: queries.Get, wanted: request.AcceleratorRequest
) -> GroupRefusal | None:
    """Return why Placement has nothing for a request, None if it may have.

    Each group is asked for alone, so a refusal is certain: no host can
    serve a request of which it can't serve a part. One short call per
    different group; two more when one has no candidate.

    :raises FactsError: Placement did not answer; nothing is known then.
    """
    asked: list[flavors.RequestGroup] = []
    for group in wanted.groups:
        alike = dataclasses.replace(group, suffix="")
        if alike in asked:
            continue
        asked.append(alike)
        try:
            if not responses.fetch_any(get, group):
                return _explain(get, group)
        except queries.QueryError as error:
            unheard = queries.UNHEARD_OF.search(error.reason)
            if unheard is None:
                raise
            return GroupRefusal(
                group=group,
                summary=f"no accelerator ever offered {unheard[1]};"
                " check the spelling in the flavor's extra specs",
            )
    return None


def _explain(get: queries.Get, group: flavors.RequestGroup) -> GroupRefusal:
    try:
        providers = responses.fetch_everything(get)
        names = responses.fetch_names(get)
    except queries.QueryError as error:
        return GroupRefusal(
            group=group,
            summary=f"no accelerator serves {group}",
            details=(str(error),),
        )
    return describe(group, providers.values(), names)


def describe(
    group: flavors.RequestGroup,
    providers: Iterable[provider_facts.ProviderFacts],
    names: Mapping[str, str],
) -> GroupRefusal:
    """Return why none of the providers serves a group.

    :param names: providers' names by uuid, for the details.
    """
    named = sorted(
        (
            dataclasses.replace(p, name=names.get(p.uuid, p.name))
            for p in providers
            if group.resources.keys() & p.stock.keys()
        ),
        key=lambda p: p.label,
    )
    roomy = (
        f"has room for {group}; look at max_unit, min_unit and step_size of"
        " its inventories"
    )
    lines = [
        f"{p.label}: {lacking(group, p.traits, p.stock) or roomy}"
        for p in named
    ]
    suited = [p for p in named if not _traits_lacking(group, p.traits)]
    counts = [_counts(group, suited or named)] if named else []
    return GroupRefusal(
        group=group,
        summary=_summary(group, named, suited),
        details=(*counts, *first(lines, _MAX_LINES)),
    )


def lacking(
    group: flavors.RequestGroup,
    traits: frozenset[str],
    stock: Mapping[str, provider_facts.ClassCapacity],
) -> str:
    """Return what a provider lacks for a group, nothing if it has room."""
    lacks = _traits_lacking(group, traits)
    suffices = []
    for name, amount in group.resources.items():
        if name not in stock:
            lacks.append(f"has no {name}")
        elif amount > stock[name].left:
            lacks.append(f"{name} {stock[name]}, {amount} needed")
        else:
            suffices.append(f"{name} {stock[name]}")
    return ", ".join(lacks + suffices) if lacks else ""


def first(lines: Iterable[str], most: int) -> list[str]:
    """Return different lines, of many the first ones and how many more."""
    found = list(dict.fromkeys(lines))
    more = len(found) - most
    return found if more <= 0 else [*found[:most], f"and {more} more"]


def _traits_lacking(
    group: flavors.RequestGroup, traits: frozenset[str]
) -> list[str]:
    return [
        f"does not offer {trait} now"
        for trait in sorted(group.required - traits)
    ] + [
        f"has {trait}, which the flavor forbids"
        for trait in sorted(group.forbidden & traits)
    ]


def _summary(
    group: flavors.RequestGroup,
    providers: Sequence[provider_facts.ProviderFacts],
    suited: Sequence[provider_facts.ProviderFacts],
) -> str:
    """Return why no provider serves a group, without hosts.

    :param suited: the providers that have its traits.
    """
    classes = ", ".join(group.resources)
    if not providers:
        return f"no accelerator offers {classes}"
    if not suited:
        traits = sorted(group.required) + [
            f"not {trait}" for trait in sorted(group.forbidden)
        ]
        return f"no accelerator offers {classes} with {', '.join(traits)} now"
    return f"no accelerator has room for {group}"


def _counts(
    group: flavors.RequestGroup,
    providers: Sequence[provider_facts.ProviderFacts],
) -> str:
    """Return what is left over all providers, as ``VGPU 0 of 8 left``."""
    parts = []
    for name in group.resources:
        stocks = [p.stock[name] for p in providers if name in p.stock]
        total = provider_facts.ClassCapacity(
            capacity=sum(s.capacity for s in stocks),
            used=sum(s.capacity - s.left for s in stocks),
        )
        most = max((s.left for s in stocks), default=0)
        parts.append(
            f"{name} {total} on {len(stocks)}"
            + (f", at most {most} on one" if len(stocks) > 1 else "")
        )
    return "; ".join(parts)
