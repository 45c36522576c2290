# SPDX-License-Identifier: Apache-2.0
"""PlacementClient reads a real Placement, and what its cache saves."""

import itertools
import time
import uuid
from collections.abc import Callable

import pytest
from keystoneauth1 import session, token_endpoint

from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import (
    calls,
    cloud_client,
    provider_cache,
    resource_providers,
    rest,
    service_client,
)
from tests.functional.sync.support import faults, servers
from tests.functional.sync.support.one_card import (
    CARD,
    CARD_NAME,
    CLASS,
    CREATE,
    FOREIGN,
    ROOT,
    TRAIT,
    Clock,
    add,
    allocate,
    generation,
    put,
    reads,
    rename,
)
from tests.support.placement import applied_plans


def test_calls_change_placement_as_planned(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    before = client.fetch(ROOT)
    assert before.root == providers.ProviderRoot(name="host", uuid=ROOT)
    assert before.tree.nodes == ()
    for call in CREATE:
        client.apply(call)
    host.clear()
    after = client.fetch(ROOT)
    assert after.tree == applied_plans.apply(before.tree, CREATE)
    assert reads(host) == 1
    fresh = resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url)
    )
    assert fresh.fetch(ROOT).tree == after.tree


def test_a_new_card_is_three_writes(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    for call in CREATE[:3]:
        client.apply(call)
    client.fetch(ROOT)
    host.clear()
    for call in CREATE[3:]:
        client.apply(call)
    assert [each.method for each in host.clear()] == ["POST", "PUT", "PUT"]


def test_no_compute_node(client: resource_providers.PlacementClient) -> None:
    unknown = str(uuid.UUID(int=77))
    snapshot = client.fetch(unknown)
    assert snapshot.root is None
    assert snapshot.tree.root.uuid == unknown


def test_an_unchanged_host_is_one_read(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    first = client.fetch(ROOT, frozenset({card}))
    assert reads(host) == 1
    assert client.fetch(ROOT) == first
    assert reads(host) == 1


def recreate(host: servers.Server) -> None:
    host.call("DELETE", f"/resource_providers/{CARD}")
    add(host, CARD, CARD_NAME, ROOT)


CHANGES: dict[str, Callable[[servers.Server], object]] = {
    "inventories": lambda s: put(
        s, CARD, "inventories", {CLASS: {"total": 7}}
    ),
    "traits": lambda s: put(s, CARD, "traits", ["CUSTOM_OWNER_NOVA_ACCEL"]),
    "aggregates": lambda s: put(
        s, CARD, "aggregates", [str(uuid.UUID(int=5))]
    ),
    "no inventories": lambda s: s.call(
        "DELETE", f"/resource_providers/{CARD}/inventories"
    ),
    "no traits": lambda s: s.call(
        "DELETE", f"/resource_providers/{CARD}/traits"
    ),
    "one inventory": lambda s: s.call(
        "PUT",
        f"/resource_providers/{CARD}/inventories/{CLASS}",
        {
            "total": 9,
            "resource_provider_generation": generation(s, CARD),
        },
    ),
    "allocations": lambda s: allocate(s, CARD, 1),
    "renamed": rename,
    "deleted": lambda s: s.call("DELETE", f"/resource_providers/{CARD}"),
    "recreated": recreate,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_others_are_read_at_once(
    client: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    change: str,
) -> None:
    CHANGES[change](host)
    seen = client.fetch(ROOT)
    fresh = resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url)
    )
    assert seen == fresh.fetch(ROOT)


def test_the_same_traits_change_nothing(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    before = generation(host, card)
    put(host, card, "traits", [names.OWNER_TRAIT, TRAIT])
    assert generation(host, card) == before
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 1


def test_one_changed_provider_is_two_more_reads(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    put(host, card, "traits", [names.OWNER_TRAIT])
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 3


def test_nova_providers_cost_nothing(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    put(host, ROOT, "inventories", {"VCPU": {"total": 8}})
    put(host, FOREIGN, "inventories", {"PCI_DEVICE": {"total": 8}})
    for own, of in ((FOREIGN, "PCI_DEVICE"), (ROOT, "VCPU")):
        allocate(host, own, 1, of)
        host.clear()
        snapshot = client.fetch(ROOT)
        assert [node.uuid for node in snapshot.tree.nodes] == [card]
        assert reads(host) == 1


def test_nova_providers_are_never_read(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    fresh = resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url)
    )
    fresh.fetch(ROOT)
    paths = [each.path for each in host.clear()]
    assert not [p for p in paths if FOREIGN in p or f"/{ROOT}/" in p]
    assert f"/resource_providers/{card}/traits" in paths


def test_foreign_providers_are_read_once(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    for number in range(20):
        add(host, str(uuid.UUID(int=100 + number)), f"s{number}", ROOT)
    host.call("PUT", f"/traits/{names.OWNER_TRAIT}")
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 2
    client.fetch(ROOT)
    assert reads(host) == 1
    add(host, str(uuid.UUID(int=200)), "another", ROOT)
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 2


def test_a_provider_is_adopted_by_its_trait(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Nova created it: it has the owner's trait, but another uuid."""
    other = str(uuid.UUID(int=300))
    add(host, other, "host_pci_0000_42_00_0", ROOT)
    assert client.fetch(ROOT).tree.node(other) is None
    host.call(
        "PUT",
        f"/resource_providers/{other}",
        {"name": "host_accel_0000_42_00_0", "parent_provider_uuid": ROOT},
    )
    put(host, other, "traits", [names.OWNER_TRAIT])
    assert client.fetch(ROOT).tree.node(other) is not None
    put(host, other, "traits", [])
    assert client.fetch(ROOT).tree.node(other) is None


def test_a_400_for_another_reason_is_an_error(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Only Placement's list of traits proves that a trait is unknown."""
    other = str(uuid.UUID(int=300))
    add(host, other, "host_accel_0000_42_00_0", ROOT)
    put(host, other, "traits", [names.OWNER_TRAIT])
    with faults.Proxy(host.url).running() as proxy:
        fresh = resource_providers.PlacementClient(
            cloud_client.from_endpoint(proxy.url)
        )
        proxy.arm(faults.Fault(kind="400", at=1, where="required="))
        with pytest.raises(errors.ServiceError) as caught:
            fresh.fetch(ROOT)
        assert caught.value.status == 400
        assert fresh.fetch(ROOT).tree.node(other)


def test_an_expected_provider_needs_no_trait(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    other = str(uuid.UUID(int=300))
    add(host, other, "host_pci_0000_42_00_0", ROOT)
    assert client.fetch(ROOT, frozenset({other})).tree.node(other)
    host.clear()
    assert client.fetch(ROOT, frozenset({other})).tree.node(other)
    assert reads(host) == 1
    assert client.fetch(ROOT).tree.node(other) is None


def test_a_provider_without_traits_is_found_by_its_uuid(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    add(host, CARD, CARD_NAME, ROOT)
    node = client.fetch(ROOT).tree.node(CARD)
    assert node is not None
    assert node.traits == frozenset()


def test_a_provider_of_another_host_is_not_seen(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    other = str(uuid.UUID(int=2))
    add(host, other, "other")
    assert client.fetch(other).tree.nodes == ()
    assert client.fetch(ROOT).tree.node(card)


class Interrupted(rest.RestClient):
    """Calls ``event`` after it has read a provider's inventories."""

    event: Callable[[], object] | None = None

    def get(
        self, path: str, microversion: str = ""
    ) -> service_client.Response:
        answer = super().get(path, microversion)
        if self.event and path.endswith("/inventories"):
            event, self.event = self.event, None
            event()
        return answer


def test_a_provider_that_changes_during_a_read(
    host: servers.Server, card: str
) -> None:
    """Inventories and generation don't match: the next write fails."""
    auth = token_endpoint.Token(host.url, "admin")
    rest_client = Interrupted(
        cloud_client.from_session(
            session.Session(auth=auth),
            {"placement_endpoint_override": host.url},
            rest.PLACEMENT,
        ).open_adapter
    )
    client = resource_providers.PlacementClient(rest_client)
    rest_client.event = lambda: put(
        host, card, "inventories", {CLASS: {"total": 48, "reserved": 3}}
    )
    client.fetch(ROOT)
    with pytest.raises(errors.ServiceError) as caught:
        client.apply(CREATE[4])
    assert caught.value.is_conflict
    seen = client.fetch(ROOT).tree.node(card)
    assert seen
    assert seen.inventories[CLASS].reserved == 3


def recreate_with_same_generation(host: servers.Server, card: str) -> None:
    """Delete a provider, and create it up to the same generation."""
    before = generation(host, card)
    recreate(host)
    for _ in range(before):
        put(host, card, "inventories", {"VGPU": {"total": 1}})
    host.clear()


def test_a_recreated_provider_is_read_again(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    client.fetch(ROOT)
    time.sleep(1.0)  # the resolution of Last-Modified
    recreate_with_same_generation(host, card)

    seen = client.fetch(ROOT).tree.node(card)

    assert seen
    assert CLASS not in seen.inventories
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 1


def test_all_is_read_again_after_an_interval(
    client: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    clock: Clock,
) -> None:
    """A provider was recreated while the compute node changed, too."""
    recreate_with_same_generation(host, card)
    put(host, ROOT, "inventories", {"VCPU": {"total": 1}})
    host.clear()
    seen = client.fetch(ROOT).tree.node(card)
    assert seen
    assert CLASS in seen.inventories
    clock.now += provider_cache.FRESH_SECONDS
    seen = client.fetch(ROOT).tree.node(card)
    assert seen
    assert CLASS not in seen.inventories
    host.clear()
    client.fetch(ROOT)
    assert reads(host) == 1


def test_allocations_by_consumer(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    assert client.fetch_allocations(card) == {}
    first, second = (allocate(host, card, n) for n in (2, 3))
    assert client.fetch_allocations(card) == {
        first: {CLASS: 2},
        second: {CLASS: 3},
    }
    assert client.fetch_allocations(str(uuid.UUID(int=404))) == {}


def test_only_free_providers_are_cached(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Deleted allocations don't raise the provider's generation."""
    assert not client.has_allocations(card)
    assert reads(host) == 1
    assert not client.has_allocations(card)
    assert reads(host) == 0
    consumer = allocate(host, card, 1)
    client.fetch(ROOT)
    assert client.has_allocations(card)
    before = generation(host, card)
    host.call("DELETE", f"/allocations/{consumer}")
    assert generation(host, card) == before
    client.fetch(ROOT)
    assert not client.has_allocations(card)


def test_existing_names_are_read_once(
    client: resource_providers.PlacementClient, host: servers.Server
) -> None:
    custom_names = frozenset({CLASS, TRAIT, "HW_CPU_X86_AVX", "CUSTOM_NEVER"})
    assert client.filter_existing(custom_names) == {"HW_CPU_X86_AVX"}
    assert reads(host) == 2
    for call in (CREATE[0], CREATE[2]):
        client.apply(call)
    assert client.filter_existing(frozenset({CLASS, TRAIT})) == {CLASS, TRAIT}
    assert host.clear()[2:] == []
    fresh = resource_providers.PlacementClient(
        cloud_client.from_endpoint(host.url)
    )
    assert fresh.filter_existing(custom_names) == custom_names - {
        "CUSTOM_NEVER"
    }
    client.invalidate()
    host.call("DELETE", f"/traits/{TRAIT}")
    assert client.filter_existing(frozenset({TRAIT})) == frozenset()


def test_many_long_names(client: resource_providers.PlacementClient) -> None:
    custom_names = frozenset(f"CUSTOM_{n}_{'X' * 200}" for n in range(100))
    assert client.filter_existing(custom_names) == frozenset()
    name = min(custom_names)
    client.apply(calls.CreateTrait(name=name))
    client.invalidate()
    assert client.filter_existing(custom_names) == {name}


def test_an_invalidated_provider_is_read_again(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    client.invalidate(card)
    client.fetch(ROOT)
    assert reads(host) == 3
    client.invalidate()
    client.fetch(ROOT)
    assert reads(host) == 4


@pytest.mark.parametrize("bad", ["", "..", "../traits", "x" * 36])
def test_malformed_uuids_are_not_sent(
    client: resource_providers.PlacementClient, host: servers.Server, bad: str
) -> None:
    for send in (
        client.fetch,
        client.fetch_allocations,
        lambda u: client.apply(calls.DeleteProvider(uuid=u, name="n")),
    ):
        with pytest.raises(errors.MalformedError):
            send(bad)
    assert host.clear() == []


def test_ratios_are_read_back_unchanged(
    client: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Placement's column is a float of single precision on some databases."""
    for ratio, total in itertools.product((1.1, 16.0, 0.333333), (48,)):
        inventory = providers.Inventory(
            total=total, max_unit=48, allocation_ratio=ratio
        )
        client.apply(
            calls.SetInventories(
                uuid=card, name=CARD_NAME, inventories={CLASS: inventory}
            )
        )
        seen = client.fetch(ROOT).tree
        client.invalidate()
        assert client.fetch(ROOT).tree == seen
