# SPDX-License-Identifier: Apache-2.0
"""Why no host at all can serve a request, in words."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from filters import facts, offered, request
from nova_accel import flavors

# Lines of one explanation; a cloud has more devices than a log needs.
_MAX_LINES = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a group has no candidate anywhere.

    ``summary`` is for the server's owner: no name of a host is in it, and
    it is short (Nova keeps 255 characters of a fault). ``details`` are for
    the operator, one line per device.
    """

    group: flavors.RequestGroup
    summary: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the refusal for the log, devices and all."""
        return "; ".join((self.summary, *self.details))


def find_refusal(
    get: facts.Get, wanted: request.AcceleratorRequest
) -> Refusal | None:
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
            if not facts.fetch_any(get, group):
                return _explain(get, group)
        except facts.FactsError as error:
            unheard = facts.UNHEARD_OF.search(error.reason)
            if unheard is None:
                raise
            return Refusal(
                group=group,
                summary=f"no accelerator ever offered {unheard[1]};"
                " check the spelling in the flavor's extra specs",
            )
    return None


def _explain(get: facts.Get, group: flavors.RequestGroup) -> Refusal:
    try:
        providers = facts.fetch_everything(get)
        names = facts.fetch_names(get)
    except facts.FactsError as error:
        return Refusal(
            group=group,
            summary=f"no accelerator serves {group}",
            details=(str(error),),
        )
    return describe(group, providers.values(), names)


def describe(
    group: flavors.RequestGroup,
    providers: Iterable[offered.ProviderFacts],
    names: Mapping[str, str],
) -> Refusal:
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
    lines = [f"{p.label}: {_lacks(group, p)}" for p in named]
    if len(lines) > _MAX_LINES:
        rest = len(lines) - _MAX_LINES
        lines[_MAX_LINES:] = [f"and {rest} more"]
    return Refusal(
        group=group, summary=_summary(group, named), details=tuple(lines)
    )


def _traits_lacking(
    group: flavors.RequestGroup, provider: offered.ProviderFacts
) -> list[str]:
    return [
        f"does not offer {trait} now"
        for trait in sorted(group.required - provider.traits)
    ] + [
        f"has {trait}, which the flavor forbids"
        for trait in sorted(group.forbidden & provider.traits)
    ]


def _lacks(
    group: flavors.RequestGroup, provider: offered.ProviderFacts
) -> str:
    lacks = _traits_lacking(group, provider)
    for name, amount in group.resources.items():
        stock = provider.stock.get(name)
        if stock is None:
            lacks.append(f"has no {name}")
        elif amount > stock.left:
            lacks.append(f"{name} {stock}, {amount} needed")
    if not lacks:
        return (
            f"has room for {group}; look at max_unit, min_unit and"
            " step_size of its inventories"
        )
    return ", ".join([*lacks, *_has(group, provider)])


def _has(
    group: flavors.RequestGroup, provider: offered.ProviderFacts
) -> Iterable[str]:
    """Yield the counts that do suffice, for whoever reads the rest."""
    for name, amount in group.resources.items():
        stock = provider.stock.get(name)
        if stock is not None and amount <= stock.left:
            yield f"{name} {stock}"


def _summary(
    group: flavors.RequestGroup, providers: Sequence[offered.ProviderFacts]
) -> str:
    classes = ", ".join(group.resources)
    if not providers:
        return f"no accelerator offers {classes}"
    suited = [p for p in providers if not _traits_lacking(group, p)]
    if not suited:
        traits = sorted(group.required) + [
            f"not {trait}" for trait in sorted(group.forbidden)
        ]
        return (
            f"no accelerator offers {classes} with {', '.join(traits)} now"
            f" ({_counts(group, providers)})"
        )
    return (
        f"no accelerator has room for {group} ({_counts(group, suited)})"
    )


def _counts(
    group: flavors.RequestGroup, providers: Sequence[offered.ProviderFacts]
) -> str:
    """Return what is left over all providers, as ``VGPU 0 of 8 left``."""
    parts = []
    for name in group.resources:
        stocks = [p.stock[name] for p in providers if name in p.stock]
        total = offered.Stock(
            capacity=sum(s.capacity for s in stocks),
            used=sum(s.capacity - s.left for s in stocks),
        )
        most = max((s.left for s in stocks), default=0)
        parts.append(
            f"{name} {total} on {len(stocks)}"
            + (f", at most {most} on one" if len(stocks) > 1 else "")
        )
    return "; ".join(parts)
