# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates, and the providers that they allocate from."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel.model import flavors, providers

# One of Nova's allocation candidates (Placement's "allocation_requests"
# from microversion 1.34): {"allocations": {provider uuid: {"resources":
# {class: amount}}}, "mappings": {suffix: [provider uuid]}}
Candidate = Mapping[str, Any]
# Providers by uuid.
Facts = Mapping[str, providers.Provider]


def list_providers(
    classes: frozenset[str], candidates: Iterable[Candidate]
) -> tuple[str, ...]:
    """Return the uuids of the providers that candidates allocate from.

    Only providers of the given resource classes, each once, in the order
    of the candidates.
    """
    return tuple(
        dict.fromkeys(
            uuid
            for candidate in candidates
            for uuid, allocation in candidate["allocations"].items()
            if not classes.isdisjoint(allocation["resources"])
        )
    )


def list_added(
    groups: Iterable[flavors.RequestGroup], candidate: Candidate
) -> dict[str, tuple[flavors.RequestGroup, ...]]:
    """Return the groups that a candidate adds to each provider, by uuid.

    Of a group that several providers serve, each gets its units.
    """
    added: dict[str, tuple[flavors.RequestGroup, ...]] = {}
    mappings = candidate.get("mappings", {})
    for group in groups:
        uuids = mappings.get(group.suffix, ())
        for uuid in uuids:
            part = group
            if len(uuids) > 1:
                allocated = candidate["allocations"][uuid]["resources"]
                part = dataclasses.replace(
                    group,
                    resources={
                        name: amount
                        for name, amount in allocated.items()
                        if name in group.resources
                    },
                )
            added[uuid] = (*added.get(uuid, ()), part)
    return added
