# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process; its WSGI application is called."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib import parse

import sqlalchemy
from oslo_db.sqlalchemy import engines
from placement import db_api, deploy
from placement.tests.functional.fixtures import placement
from webob import Request

from nova_accel.model import names, providers
from placement_sync.client import calls
from tests.functional.sync.support import placement_app

VERSION = "placement 1.39"
OK = 300

INVENTORIES = sqlalchemy.text("""
SELECT c.name, i.total, i.reserved FROM inventories i
JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
WHERE p.uuid = :uuid""")
TRAITS = sqlalchemy.text("""
SELECT t.name FROM resource_provider_traits r
JOIN resource_providers p ON p.id = r.resource_provider_id
JOIN traits t ON t.id = r.trait_id
WHERE p.uuid = :uuid""")
ALLOCATIONS = sqlalchemy.text("""
SELECT a.consumer_id, c.name, a.used FROM allocations a
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_classes c ON c.id = a.resource_class_id
WHERE p.uuid = :uuid""")


@functools.cache
def skip_slow_checks() -> None:
    """Skip work that costs a third of the time and proves nothing here.

    oslo.db does not yield after each query: there is no other thread.
    """
    placement_app.spare_work()
    engines._thread_yield = lambda *_: None


class PlacementError(Exception):
    """Placement refused a call; the text is its answer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderRecord:
    """Data of one provider in Placement.

    ``inventories``: class -> total, reserved; ``allocations``: consumer ->
    class -> amount.
    """

    inventories: Mapping[str, tuple[int, int]]
    traits: frozenset[str]
    allocations: Mapping[str, Mapping[str, int]]


class Service:
    """Placement's REST API, with the generations of its providers."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """Start a Placement that ends with ``stack``."""
        skip_slow_checks()
        fixture = placement.PlacementFixture(use_intercept=False)
        stack.enter_context(fixture)
        self._app = deploy.loadapp(fixture.conf_fixture.conf)
        self._names: set[str] = set()
        self._generations: dict[str, int] = {}
        self.calls = 0

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return Placement's answer; raises PlacementError."""
        request = Request.blank(path, method=method)
        request.headers["x-auth-token"] = "admin"
        request.headers["openstack-api-version"] = VERSION
        if body is not None:
            request.content_type = "application/json"
            request.body = json.dumps(body).encode()
        answer = request.get_response(self._app)
        self.calls += 1
        if answer.status_code >= OK:
            raise PlacementError(f"{method} {path}: {answer.text}")
        return json.loads(answer.body) if answer.body else {}

    def create_root(self, root: providers.ProviderRoot) -> None:
        """Register the compute node, as Nova does."""
        self._create(root.uuid, root.name, None)

    def _create(self, uuid: str, name: str, parent: str | None) -> None:
        self.call(
            "POST",
            "/resource_providers",
            {"uuid": uuid, "name": name, "parent_provider_uuid": parent},
        )

    # -- writes of the library -------------------------------------------

    def apply(
        self,
        plan: Iterable[calls.Call],
        tree: providers.ProviderTree,
    ) -> None:
        """Carry out placement_sync's plan for a tree.

        A provider's traits go in one request, as Nova's client sends them.
        """
        traits: set[str] = set()
        for call in plan:
            match call:
                case calls.CreateClass(name=name):
                    self._ensure("resource_classes", [name])
                case calls.CreateTrait(name=name):
                    self._ensure("traits", [name])
                case calls.CreateProvider():
                    self._create(call.uuid, call.name, call.parent)
                case calls.SetInventories(inventories=inventories):
                    self._ensure("resource_classes", inventories)
                    records = {k: v.as_dict() for k, v in inventories.items()}
                    self._put(call.uuid, "inventories", records)
                case calls.DeleteProvider():
                    self.call("DELETE", f"/resource_providers/{call.uuid}")
                case calls.ChangeTraits():
                    traits.add(call.uuid)
        for uuid in sorted(traits):
            node = tree.node(uuid)
            assert node is not None
            self._ensure("traits", node.traits)
            self._put(uuid, "traits", sorted(node.traits))

    def _put(self, uuid: str, key: str, value: object) -> None:
        """Replace a part of a provider; tries the cached generation first."""
        path = f"/resource_providers/{uuid}"
        for _ in range(2):
            generation = self._generations.get(uuid)
            if generation is None:
                generation = self.call("GET", path)["generation"]
            body = {key: value, "resource_provider_generation": generation}
            try:
                answer = self.call("PUT", f"{path}/{key}", body)
            except PlacementError as error:
                if "conflict" not in str(error).lower():
                    raise
                del self._generations[uuid]
                continue
            self._generations[uuid] = answer["resource_provider_generation"]
            return
        raise PlacementError(f"{path} changes all the time")

    def _ensure(self, kind: str, custom_names: Iterable[str]) -> None:
        for name in custom_names:
            if name.startswith("CUSTOM_") and name not in self._names:
                self.call("PUT", f"/{kind}/{name}")
                self._names.add(name)

    # -- reads -----------------------------------------------------------

    def read_api(self, uuid: str) -> ProviderRecord:
        """Return a provider's record from the REST API."""
        path = f"/resource_providers/{uuid}"
        inventories = self.call("GET", f"{path}/inventories")["inventories"]
        allocations = self.call("GET", f"{path}/allocations")["allocations"]
        return ProviderRecord(
            inventories={
                name: (record["total"], record["reserved"])
                for name, record in inventories.items()
            },
            traits=frozenset(self.call("GET", f"{path}/traits")["traits"]),
            allocations={
                consumer: dict(record["resources"])
                for consumer, record in allocations.items()
            },
        )

    def read(self, uuid: str) -> ProviderRecord:
        """Return a provider's record from Placement's tables: faster."""
        engine = db_api.placement_context_manager.reader.get_engine()
        with engine.connect() as connection:
            inventories, traits, used = (
                connection.execute(query, {"uuid": uuid}).all()
                for query in (INVENTORIES, TRAITS, ALLOCATIONS)
            )
        allocations: dict[str, dict[str, int]] = {}
        for consumer, name, amount in used:
            allocations.setdefault(consumer, {})[name] = amount
        return ProviderRecord(
            inventories={
                name: (total, reserved)
                for name, total, reserved in inventories
            },
            traits=frozenset(name for (name,) in traits),
            allocations=allocations,
        )

    # -- requests of the scheduler ---------------------------------------

    def candidates(
        self, resources: Mapping[str, int], trait: str
    ) -> list[dict[str, Any]]:
        """Return allocation requests; a single provider has all resources."""
        self._ensure("traits", [trait])
        amounts = ",".join(f"{k}:{v}" for k, v in sorted(resources.items()))
        query = parse.urlencode(
            {
                "resources_G": amounts,
                "required_G": f"{trait},{names.OWNER_TRAIT}",
                "group_policy": "none",
            }
        )
        answer = self.call("GET", f"/allocation_candidates?{query}")
        return sorted(
            answer["allocation_requests"],
            key=lambda request: sorted(request["allocations"]),
        )

    def claim(self, consumer: str, allocations: Mapping[str, Any]) -> None:
        """Allocate a candidate to a server."""
        self.call(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": allocations,
                "consumer_generation": None,
                "project_id": "project",
                "user_id": "user",
                "consumer_type": "INSTANCE",
            },
        )
        self._count_change(allocations)

    def delete_allocations(self, consumer: str, uuids: Iterable[str]) -> None:
        """Delete a server's allocations, which are of these providers."""
        self.call("DELETE", f"/allocations/{consumer}")
        self._count_change(uuids)

    def _count_change(self, uuids: Iterable[str]) -> None:
        """Count the change of an allocation in the cached generations."""
        for uuid in uuids:
            if uuid in self._generations:
                self._generations[uuid] += 1
