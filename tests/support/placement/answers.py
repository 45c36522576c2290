# SPDX-License-Identifier: Apache-2.0
"""Stub of Placement's API with providers in a dictionary.

For unit tests that count reads; tests/functional use the real Placement.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib import parse

from filters import provider_facts, request
from filters.fit import fact_reader
from nova_accel import errors
from nova_accel.model import names, providers

MDEV = {"resources_A:CUSTOM_MDEV": "1"}
VGPU = {"resources_A:VGPU": "1", "resources_A:CUSTOM_GPU_MEMORY_MB": "8"}
MIXED = names.layout_trait("mixed")
MEMORY = names.GPU_MEMORY_CLASS
LISTING = "/resource_providers"
BULK = "/allocation_candidates"
CARD = [
    f"/resource_providers//{what}"
    for what in ("inventories", "traits", "allocations")
]
ALLOCATIONS = CARD[2]
# Fields of each consumer.
CONSUMER = {"project_id": "p", "user_id": "u", "consumer_generation": 1}


class Placement:
    """Providers as Placement has them; ``requests`` are the paths read.

    Reads of paths that contain ``broken`` fail. Each provider is a tree of
    its own, with room for any request.
    """

    def __init__(self, count: int = 0, *traits: str) -> None:
        self.providers: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        self.servers: dict[str, dict[str, dict[str, int]]] = {}
        self.requests: list[str] = []
        self.broken = "nothing"
        for number in range(count):
            self.add(f"card{number:02d}", *traits)

    def add(self, uuid: str, *traits: str, owned: bool = True) -> None:
        own = {names.OWNER_TRAIT} if owned else set()
        self.providers[uuid] = {
            "traits": {*own, *traits},
            "total": {names.MDEV_CLASS: 8, names.GPU_CLASS: 8, MEMORY: 64},
            "generation": 1,
        }

    def take(self, server: str, uuid: str, **units: int) -> None:
        self.servers[server] = {uuid: units}
        self.providers[uuid]["generation"] += 1

    def change(self, uuid: str, trait: str) -> None:
        self.providers[uuid]["traits"] ^= {trait}
        self.providers[uuid]["generation"] += 1

    def get(self, path: str) -> Any:
        self.requests.append(path)
        url = parse.urlsplit(path)
        if self.broken in path:
            raise errors.ServiceError("GET", path, None, "ConnectFailure")
        query = dict(parse.parse_qsl(url.query))
        kind, *rest = url.path.strip("/").split("/")
        if kind == "allocations":
            allocations = self.servers.get(rest[0], {})
            return {
                "allocations": {
                    u: {"resources": x} for u, x in allocations.items()
                },
                **CONSUMER,
            }
        if kind == "allocation_candidates":
            return {"provider_summaries": self._summaries(query)}
        if not rest:
            return {
                "resource_providers": [self._who(u) for u in self._fit(query)]
            }
        if rest[0] not in self.providers:
            return None
        return self._detail(*rest)

    def _used(self, uuid: str) -> dict[str, dict[str, int]]:
        return {
            s: allocations[uuid]
            for s, allocations in self.servers.items()
            if uuid in allocations
        }

    def _fit(self, query: dict[str, str]) -> list[str]:
        required = set(query["required"].split(","))
        return [
            uuid
            for uuid, provider in self.providers.items()
            if required <= provider["traits"]
        ]

    def _who(self, uuid: str) -> dict[str, Any]:
        return {
            "uuid": uuid,
            "name": self.names.get(uuid, f"node_{uuid}"),
            "parent_provider_uuid": None,
            "root_provider_uuid": uuid,
            "generation": self.providers[uuid]["generation"],
        }

    def _detail(self, uuid: str, what: str = "") -> dict[str, Any]:
        provider = self.providers[uuid]
        if not what:
            return self._who(uuid)
        content: Any = {
            "inventories": {
                name: providers.Inventory(total=n).as_dict()
                for name, n in provider["total"].items()
            },
            "traits": sorted(provider["traits"]),
            "allocations": {
                s: {"resources": resources}
                for s, resources in self._used(uuid).items()
            },
        }[what]
        return {
            what: content,
            "resource_provider_generation": provider["generation"],
        }

    def _summaries(self, query: dict[str, str]) -> dict[str, Any]:
        return {
            uuid: {
                "resources": {
                    name: {
                        "capacity": n,
                        "used": sum(
                            h.get(name, 0) for h in self._used(uuid).values()
                        ),
                    }
                    for name, n in self.providers[uuid]["total"].items()
                },
                "traits": sorted(self.providers[uuid]["traits"]),
                "parent_provider_uuid": None,
                "root_provider_uuid": uuid,
            }
            for uuid in self._fit({"required": query["required_ACCEL"]})
        }

    def calls(self) -> list[str]:
        """Return the paths read since the last call, without names."""
        paths = [re.sub(r"card\d+|\?.*", "", path) for path in self.requests]
        self.requests.clear()
        return paths


def hosts(
    uuids: Iterable[str], each: int = 2, **units: int
) -> list[list[provider_facts.Candidate]]:
    """Return lists of candidates, one for each host."""
    candidates: list[provider_facts.Candidate] = [
        {"allocations": {uuid: {"resources": units or {"CUSTOM_MDEV": 1}}}}
        for uuid in uuids
    ]
    return [
        candidates[first : first + each]
        for first in range(0, len(candidates), each)
    ]


def read(
    reader: fact_reader.FactReader,
    uuids: Iterable[str],
    specs: dict[str, str] = MDEV,
    each: int = 2,
) -> fact_reader.FactSnapshot:
    """Return the facts that a new request reads."""
    parsed = request.parse_request(specs)
    units = dict(parsed.groups[0].resources)
    return reader.read(
        fact_reader.RequestMemory(request=parsed),
        "server",
        hosts(uuids, each, **units),
    )
