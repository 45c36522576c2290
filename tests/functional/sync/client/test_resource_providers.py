# SPDX-License-Identifier: Apache-2.0
"""Reads and cache of PlacementClient with a real Placement."""

import itertools
import time
import uuid
from collections.abc import Callable

import pytest
from keystoneauth1 import session, token_endpoint
from openstack import connection

from nova_accel import errors
from nova_accel.model import names, providers
from placement_sync.client import (
    calls,
    provider_cache,
    resource_providers,
    rest,
)
from placement_sync.sync import diff
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


def test_calls_do_what_they_do_on_paper(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    before = ours.fetch(ROOT)
    assert before.root == providers.ProviderRoot(name="host", uuid=ROOT)
    assert before.tree.nodes == ()
    for call in CREATE:
        ours.apply(call)
    host.clear()
    after = ours.fetch(ROOT)
    assert after.tree == diff.apply(before.tree, CREATE)
    assert after.generations == {CARD: 2}
    assert reads(host) == 1
    fresh = resource_providers.PlacementClient(rest.from_endpoint(host.url))
    assert fresh.fetch(ROOT).tree == after.tree


def test_a_new_card_is_three_writes(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    for call in CREATE[:3]:
        ours.apply(call)
    ours.fetch(ROOT)
    host.clear()
    for call in CREATE[3:]:
        ours.apply(call)
    assert [each.method for each in host.clear()] == ["POST", "PUT", "PUT"]


def test_no_compute_node(ours: resource_providers.PlacementClient) -> None:
    unknown = str(uuid.UUID(int=77))
    found = ours.fetch(unknown)
    assert found.root is None
    assert found.tree.root.uuid == unknown


def test_an_unchanged_host_is_one_read(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    first = ours.fetch(ROOT, frozenset({card}))
    assert reads(host) == 1
    assert ours.fetch(ROOT) == first
    assert reads(host) == 1


def make_anew(host: servers.Server) -> None:
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
    "made anew": make_anew,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_change_is_seen_at_once(
    ours: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    change: str,
) -> None:
    CHANGES[change](host)
    seen = ours.fetch(ROOT)
    fresh = resource_providers.PlacementClient(rest.from_endpoint(host.url))
    assert seen == fresh.fetch(ROOT)


def test_traits_that_are_there_already_change_nothing(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    before = generation(host, card)
    put(host, card, "traits", [names.OWNER_TRAIT, TRAIT])
    assert generation(host, card) == before
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 1


def test_one_changed_provider_is_two_more_reads(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    put(host, card, "traits", [names.OWNER_TRAIT])
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 3


def test_nova_providers_cost_nothing(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    put(host, ROOT, "inventories", {"VCPU": {"total": 8}})
    put(host, FOREIGN, "inventories", {"PCI_DEVICE": {"total": 8}})
    for own, of in ((FOREIGN, "PCI_DEVICE"), (ROOT, "VCPU")):
        allocate(host, own, 1, of)
        host.clear()
        found = ours.fetch(ROOT)
        assert [node.uuid for node in found.tree.nodes] == [card]
        assert reads(host) == 1


def test_nova_providers_are_never_read(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    fresh = resource_providers.PlacementClient(rest.from_endpoint(host.url))
    fresh.fetch(ROOT)
    asked = [each.path for each in host.clear()]
    assert not [p for p in asked if FOREIGN in p or f"/{ROOT}/" in p]
    assert f"/resource_providers/{card}/traits" in asked


def test_one_question_for_all_strangers(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    for number in range(20):
        add(host, str(uuid.UUID(int=100 + number)), f"s{number}", ROOT)
    host.call("PUT", f"/traits/{names.OWNER_TRAIT}")
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 2
    ours.fetch(ROOT)
    assert reads(host) == 1
    add(host, str(uuid.UUID(int=200)), "another", ROOT)
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 2


def test_an_adopted_provider_is_ours_by_its_trait(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """One that had been Nova's: our trait, and a uuid that is not ours."""
    other = str(uuid.UUID(int=300))
    add(host, other, "host_pci_0000_42_00_0", ROOT)
    assert ours.fetch(ROOT).tree.node(other) is None
    host.call(
        "PUT",
        f"/resource_providers/{other}",
        {"name": "host_accel_0000_42_00_0", "parent_provider_uuid": ROOT},
    )
    put(host, other, "traits", [names.OWNER_TRAIT])
    assert ours.fetch(ROOT).tree.node(other) is not None
    put(host, other, "traits", [])
    assert ours.fetch(ROOT).tree.node(other) is None


def test_a_400_for_another_reason_says_nothing_of_the_trait(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Only Placement's own list of traits tells that one is unknown."""
    other = str(uuid.UUID(int=300))
    add(host, other, "host_accel_0000_42_00_0", ROOT)
    put(host, other, "traits", [names.OWNER_TRAIT])
    with faults.Proxy(host.url).running() as proxy:
        fresh = resource_providers.PlacementClient(
            rest.from_endpoint(proxy.url)
        )
        proxy.arm(faults.Fault(kind="400", at=1, where="required="))
        with pytest.raises(errors.ServiceError) as found:
            fresh.fetch(ROOT)
        assert found.value.status == 400
        assert fresh.fetch(ROOT).tree.node(other)


def test_an_expected_provider_is_ours_without_its_trait(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    other = str(uuid.UUID(int=300))
    add(host, other, "host_pci_0000_42_00_0", ROOT)
    assert ours.fetch(ROOT, frozenset({other})).tree.node(other)
    host.clear()
    assert ours.fetch(ROOT, frozenset({other})).tree.node(other)
    assert reads(host) == 1
    assert ours.fetch(ROOT).tree.node(other) is None


def test_a_provider_that_died_unmarked_is_ours_by_its_uuid(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    add(host, CARD, CARD_NAME, ROOT)
    found = ours.fetch(ROOT).tree.node(CARD)
    assert found is not None
    assert found.traits == frozenset()


def test_a_provider_of_another_host_is_not_seen(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    other = str(uuid.UUID(int=2))
    add(host, other, "other")
    assert ours.fetch(other).tree.nodes == ()
    assert ours.fetch(ROOT).tree.node(card)


class Interrupted(rest.RestClient):
    """Something happens after a provider's inventories were read."""

    event: Callable[[], object] | None = None

    def get(self, path: str) -> rest.Response:
        answer = super().get(path)
        if self.event and path.endswith("/inventories"):
            event, self.event = self.event, None
            event()
        return answer


def test_written_while_it_is_read(host: servers.Server, card: str) -> None:
    """The two halves don't fit: nothing is written with them."""
    auth = token_endpoint.Token(host.url, "admin")
    cloud = connection.Connection(
        session=session.Session(auth=auth),
        placement_endpoint_override=host.url,
    )
    door = Interrupted(lambda: cloud)
    ours = resource_providers.PlacementClient(door)
    door.event = lambda: put(
        host, card, "inventories", {CLASS: {"total": 48, "reserved": 3}}
    )
    ours.fetch(ROOT)
    with pytest.raises(errors.ServiceError) as caught:
        ours.apply(CREATE[4])
    assert caught.value.is_conflict
    seen = ours.fetch(ROOT).tree.node(card)
    assert seen
    assert seen.inventories[CLASS].reserved == 3


def make_anew_unseen(host: servers.Server, card: str) -> None:
    """Delete a provider, and create it up to the same generation."""
    before = generation(host, card)
    make_anew(host)
    for _ in range(before):
        put(host, card, "inventories", {"VGPU": {"total": 1}})
    host.clear()


def test_a_provider_made_again_is_read_again(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    ours.fetch(ROOT)
    time.sleep(1.0)  # the resolution of Last-Modified
    make_anew_unseen(host, card)

    seen = ours.fetch(ROOT).tree.node(card)

    assert seen
    assert CLASS not in seen.inventories
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 1


def test_all_is_read_anew_once_in_a_while(
    ours: resource_providers.PlacementClient,
    host: servers.Server,
    card: str,
    clock: Clock,
) -> None:
    """A provider made anew while the compute node was written, too."""
    make_anew_unseen(host, card)
    put(host, ROOT, "inventories", {"VCPU": {"total": 1}})
    host.clear()
    seen = ours.fetch(ROOT).tree.node(card)
    assert seen
    assert CLASS in seen.inventories
    clock.now += provider_cache.REREAD_SECONDS
    seen = ours.fetch(ROOT).tree.node(card)
    assert seen
    assert CLASS not in seen.inventories
    host.clear()
    ours.fetch(ROOT)
    assert reads(host) == 1


def test_allocations_by_consumer(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    assert ours.fetch_allocations(card) == {}
    first, second = (allocate(host, card, n) for n in (2, 3))
    assert ours.fetch_allocations(card) == {
        first: {CLASS: 2},
        second: {CLASS: 3},
    }
    assert ours.fetch_allocations(str(uuid.UUID(int=404))) == {}


def test_free_is_remembered_and_in_use_is_not(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Deleted allocations don't raise the provider's generation."""
    assert not ours.has_allocations(card)
    assert reads(host) == 1
    assert not ours.has_allocations(card)
    assert reads(host) == 0
    consumer = allocate(host, card, 1)
    ours.fetch(ROOT)
    assert ours.has_allocations(card)
    before = generation(host, card)
    host.call("DELETE", f"/allocations/{consumer}")
    assert generation(host, card) == before
    ours.fetch(ROOT)
    assert not ours.has_allocations(card)


def test_known_names_are_asked_once(
    ours: resource_providers.PlacementClient, host: servers.Server
) -> None:
    wanted = frozenset({CLASS, TRAIT, "HW_CPU_X86_AVX", "CUSTOM_NEVER"})
    assert ours.filter_existing(wanted) == {"HW_CPU_X86_AVX"}
    assert reads(host) == 2
    for call in (CREATE[0], CREATE[2]):
        ours.apply(call)
    assert ours.filter_existing(frozenset({CLASS, TRAIT})) == {CLASS, TRAIT}
    assert host.clear()[2:] == []
    fresh = resource_providers.PlacementClient(rest.from_endpoint(host.url))
    assert fresh.filter_existing(wanted) == wanted - {"CUSTOM_NEVER"}
    ours.invalidate()
    host.call("DELETE", f"/traits/{TRAIT}")
    assert ours.filter_existing(frozenset({TRAIT})) == frozenset()


def test_many_long_names(ours: resource_providers.PlacementClient) -> None:
    wanted = frozenset(f"CUSTOM_{n}_{'X' * 200}" for n in range(100))
    assert ours.filter_existing(wanted) == frozenset()
    one = min(wanted)
    ours.apply(calls.CreateTrait(name=one))
    ours.invalidate()
    assert ours.filter_existing(wanted) == {one}


def test_what_is_forgotten_is_read_anew(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    ours.invalidate(card)
    ours.fetch(ROOT)
    assert reads(host) == 3
    ours.invalidate()
    ours.fetch(ROOT)
    assert reads(host) == 4


@pytest.mark.parametrize("bad", ["", "..", "../traits", "x" * 36])
def test_only_uuids_are_asked_for(
    ours: resource_providers.PlacementClient, host: servers.Server, bad: str
) -> None:
    for ask in (
        ours.fetch,
        ours.fetch_allocations,
        lambda u: ours.apply(calls.DeleteProvider(uuid=u, name="n")),
    ):
        with pytest.raises(errors.MalformedError):
            ask(bad)
    assert host.clear() == []


def test_ratios_of_operators_come_back_as_they_were(
    ours: resource_providers.PlacementClient, host: servers.Server, card: str
) -> None:
    """Placement's column is a float of single precision on some databases."""
    for ratio, total in itertools.product((1.1, 16.0, 0.333333), (48,)):
        inventory = providers.Inventory(
            total=total, max_unit=48, allocation_ratio=ratio
        )
        ours.apply(
            calls.SetInventories(
                uuid=card, name=CARD_NAME, inventories={CLASS: inventory}
            )
        )
        seen = ours.fetch(ROOT).tree
        ours.invalidate()
        assert ours.fetch(ROOT).tree == seen
