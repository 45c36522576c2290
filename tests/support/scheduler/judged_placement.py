# SPDX-License-Identifier: Apache-2.0
"""Placement's API over dictionaries, with its arithmetic of candidates.

For thousands of scheduled servers in seconds; the real Placement is in
tests/functional.
"""

import collections
import itertools
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from urllib import parse

from filters.fit import provider_facts
from nova_accel.model import flavors, names, providers

# Nova's limit: [scheduler] max_placement_results.
MOST_CANDIDATES = 1000
SERVER = {"VCPU": 1}
# Fields of each consumer.
CONSUMER = {"project_id": "p", "user_id": "u", "consumer_generation": 1}


class Placement:
    """Providers and allocations; ``read_paths`` are the paths of GETs."""

    def __init__(self) -> None:
        self.nodes: dict[str, providers.ProviderNode] = {}
        self.roots: dict[str, str] = {}
        self.generations: collections.Counter[str] = collections.Counter()
        self.allocations: dict[str, dict[str, dict[str, int]]] = {}
        self.read_paths: list[str] = []

    def publish(self, tree: providers.ProviderTree) -> None:
        """Store the tree of a host."""
        for node in tree.nodes:
            if self.nodes.get(node.uuid) != node:
                self.generations[node.uuid] += 1
            self.nodes[node.uuid] = node
            self.roots[node.uuid] = tree.root.uuid

    def used(self, provider: str, name: str) -> int:
        """Return how much of a class is allocated from a provider."""
        return sum(
            allocated.get(provider, {}).get(name, 0)
            for allocated in self.allocations.values()
        )

    def free(self, provider: str, name: str) -> int:
        """Return how much of a class can still be allocated."""
        inventory = self.nodes[provider].inventories.get(name)
        if inventory is None:
            return 0
        return inventory.total - inventory.reserved - self.used(provider, name)

    def has_room(self, candidate: provider_facts.Candidate) -> bool:
        """Return whether a candidate can be allocated now."""
        return all(
            self.free(provider, name) >= amount
            for provider, part in candidate["allocations"].items()
            if provider in self.nodes
            for name, amount in part["resources"].items()
        )

    def claim(self, server: str, candidate: provider_facts.Candidate) -> bool:
        """Allocate a candidate to a server; return whether it has room."""
        if not self.has_room(candidate):
            return False
        self.allocations[server] = {
            provider: dict(part["resources"])
            for provider, part in candidate["allocations"].items()
        }
        for provider in self.allocations[server]:
            self.generations[provider] += 1
        return True

    def release(self, server: str) -> None:
        """Delete a server's allocations, which changes no generation."""
        self.allocations.pop(server, None)

    def candidates(
        self, groups: Sequence[flavors.RequestGroup]
    ) -> dict[str, list[provider_facts.Candidate]]:
        """Return the allocation candidates for a server, by root."""
        return {
            root: list(
                itertools.islice(self._of_tree(root, groups), MOST_CANDIDATES)
            )
            for root in sorted(set(self.roots.values()))
        }

    def _of_tree(
        self, root: str, groups: Sequence[flavors.RequestGroup]
    ) -> Iterable[provider_facts.Candidate]:
        fitting = [
            [u for u in self._below(root) if self._serves(u, group)]
            for group in groups
        ]
        for chosen in itertools.product(*fitting):
            allocations: dict[str, Any] = {root: {"resources": dict(SERVER)}}
            for group, provider in zip(groups, chosen, strict=True):
                part = allocations.setdefault(provider, {"resources": {}})
                for name, amount in group.resources.items():
                    before = part["resources"].get(name, 0)
                    part["resources"][name] = before + amount
            candidate = {
                "allocations": allocations,
                "mappings": {
                    "": [root],
                    **{
                        group.suffix: [provider]
                        for group, provider in zip(groups, chosen, strict=True)
                    },
                },
            }
            if self.has_room(candidate):
                yield candidate

    def _below(self, root: str) -> list[str]:
        return [u for u in self.nodes if self.roots[u] == root]

    def _serves(self, provider: str, group: flavors.RequestGroup) -> bool:
        traits = self.nodes[provider].traits
        return (
            group.required <= traits
            and traits.isdisjoint(group.forbidden)
            and all(
                self.free(provider, name) >= amount
                for name, amount in group.resources.items()
            )
        )

    # -- the API --------------------------------------------------------------

    def get(self, path: str) -> Any:
        """Return the answer to a GET."""
        self.read_paths.append(path)
        url = parse.urlsplit(path)
        query = dict(parse.parse_qsl(url.query))
        kind, *rest = url.path.strip("/").split("/")
        if kind == "allocations":
            allocated = self.allocations.get(rest[0], {})
            return {
                "allocations": {
                    u: {"resources": r} for u, r in allocated.items()
                },
                **CONSUMER,
            }
        if kind == "allocation_candidates":
            group = _group(query, "_ACCEL")
            return {
                "provider_summaries": self.summaries(
                    {
                        self.roots[u]
                        for u in self.nodes
                        if self._serves(u, group)
                    }
                )
            }
        if not rest:
            group = _group(query, "")
            return {
                "resource_providers": [
                    self._identity(u)
                    for u in self.nodes
                    if self._serves(u, group)
                    and self._is_in(u, query.get("in_tree"))
                ]
            }
        if rest[0] not in self.nodes:
            return None
        return self._identity(rest[0]) if not rest[1:] else self._part(*rest)

    def _is_in(self, provider: str, tree: str | None) -> bool:
        if tree is None:
            return True
        return self.roots[provider] == self.roots.get(tree, tree)

    def _identity(self, provider: str) -> dict[str, Any]:
        return {
            "uuid": provider,
            "name": self.nodes[provider].name,
            "parent_provider_uuid": self.nodes[provider].parent,
            "root_provider_uuid": self.roots[provider],
            "generation": self.generations[provider],
        }

    def _part(self, provider: str, what: str) -> dict[str, Any]:
        node = self.nodes[provider]
        detail: Any = {
            "inventories": {
                name: inventory.as_dict()
                for name, inventory in node.inventories.items()
            },
            "traits": sorted(node.traits),
            "allocations": {
                server: {"resources": allocated[provider]}
                for server, allocated in self.allocations.items()
                if provider in allocated
            },
        }[what]
        return {
            what: detail,
            "resource_provider_generation": self.generations[provider],
        }

    def summaries(self, roots: Container[str]) -> dict[str, Any]:
        """Return the summaries of the providers of some trees."""
        return {
            u: {
                "resources": {
                    name: {
                        "capacity": inventory.total - inventory.reserved,
                        "used": self.used(u, name),
                    }
                    for name, inventory in node.inventories.items()
                },
                "traits": sorted(node.traits),
                "parent_provider_uuid": node.parent,
                "root_provider_uuid": self.roots[u],
            }
            for u, node in self.nodes.items()
            if self.roots[u] in roots
        }


def _group(query: Mapping[str, str], suffix: str) -> flavors.RequestGroup:
    """Return the group that the parameters of a query request."""
    traits = [t for t in query.get(f"required{suffix}", "").split(",") if t]
    return flavors.RequestGroup(
        suffix=suffix,
        resources={
            name: int(amount)
            for name, _, amount in (
                part.partition(":")
                for part in query.get(f"resources{suffix}", "").split(",")
                if part
            )
        },
        required=frozenset(t for t in traits if not t.startswith("!"))
        | {names.OWNER_TRAIT},
        forbidden=frozenset(t[1:] for t in traits if t.startswith("!")),
    )


def new_server(number: int) -> str:
    """Return the uuid of a server."""
    return str(uuid.UUID(int=number + 1))
