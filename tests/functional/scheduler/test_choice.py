# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler chooses the right card, with a real Placement."""

import dataclasses
import random
import re
import uuid
from collections.abc import Iterable

import fixtures
import pytest
from nova import exception
from nova.scheduler import request_filter

from filters import provider_facts, request
from filters.fit import fact_reader
from filters.placement import report_client
from nova_accel.model import names, providers
from placement_sync.client import provider_records
from tests.functional.scheduler import scheduling
from tests.functional.scheduler.scheduling import (
    Cloud,
    Scheduler,
    flavor_specs,
)

cloud = scheduling.cloud
scheduler = scheduling.scheduler
log = scheduling.log


def test_two_servers_of_three_units_get_a_card_each(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=3, b=3)

    first, second = scheduler.boot(flavor_specs(3), count=2)

    assert {
        **cloud.list_mdevs(first),
        **cloud.list_mdevs(second),
    } == dict.fromkeys(cards.values(), 3)
    assert "refuses" not in log.output


def test_stock_nova_fails_where_the_filter_succeeds(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    # Bug 1874664: once Nova fixes it, half of the filter is obsolete.
    cloud.add_host("labvm", a=3, b=3)
    scheduler.host_manager.enabled_filters.pop()

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(flavor_specs(3), count=2)


def test_a_refusal_names_each_card_and_its_reason(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cloud.add_host("labvm", a=3, b=3)
    servers = [str(uuid.uuid4()) for _ in range(3)]

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(flavor_specs(3), instances=servers)

    (line,) = re.findall("AcceleratorFilter refuses.*", log.output)
    assert line.startswith("AcceleratorFilter refuses host labvm: ")
    reasons = sorted(line.partition("labvm: ")[2].split("; "))
    for card, reason in zip("ab", reasons, strict=True):
        text, _, taker = reason.partition(" (taken by server ")
        assert text == (
            f"labvm_accel_{card}: CUSTOM_MDEV 0 left of 3, 3 needed"
        )
        assert taker[:36] in servers[:2]
        assert taker[36:] == " of the same request)"
    assert [cloud.list_mdevs(server) for server in servers] == [{}, {}, {}]


def test_the_fullest_card_is_allocated_first(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=4, c=4)
    cloud.take(cards["b"], 2)
    cloud.take(cards["c"], 4)

    (first,) = scheduler.boot(flavor_specs())
    second, third = scheduler.boot(flavor_specs(), count=2)

    assert (
        cloud.list_mdevs(first) == cloud.list_mdevs(second) == {cards["b"]: 1}
    )
    assert cloud.list_mdevs(third) == {cards["a"]: 1}


def test_servers_of_one_request_use_the_next_host(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, first_host = cloud.add_host("host1", a=1)
    _, second_host = cloud.add_host("host2", a=1)

    servers = scheduler.boot(flavor_specs(), count=2)

    providers = [provider for s in servers for provider in cloud.list_mdevs(s)]
    assert sorted(providers) == sorted([first_host["a"], second_host["a"]])
    assert log.output.count("AcceleratorFilter refuses host") >= 1


def test_calls_do_not_grow_with_hosts(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    for number in range(6):
        cloud.add_host(f"host{number}", a=2, b=2)

    def read_again() -> list[str]:
        cloud.read_paths.clear()
        scheduler.boot(flavor_specs())
        return [
            re.sub(r"\?.*|[0-9a-f-]{36}", "", path)
            for path in cloud.read_paths
        ]

    # One beforehand, Nova's own, what there is, and all of it in bulk; and
    # Nova's claim reads what the server holds.
    bulk = "/allocation_candidates"
    claim = ["/allocations/"]
    assert read_again() == [bulk, bulk, LISTING, bulk, *claim]
    # From then on only what has changed: the card that was taken.
    card = "/resource_providers/"
    again = [f"{card}/{what}" for what in CARD]
    assert read_again() == [bulk, bulk, LISTING, *again, *claim]


def test_unchanged_cards_need_one_call(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=2, b=2, c=2)
    reader = fact_reader.FactReader(report_client.placement_getter())

    first, facts = ask(cloud, reader, cards.values())
    second, same = ask(cloud, reader, cards.values())

    assert len(cards) > 2
    assert len(first) == 2
    assert [path.partition("?")[0] for path in second] == [LISTING]
    assert facts == same
    assert {card.label for card in same.values()} == {
        "labvm_accel_a",
        "labvm_accel_b",
        "labvm_accel_c",
    }


@pytest.mark.parametrize("seed", range(3))
def test_cached_facts_equal_placement_except_for_releases(
    cloud: Cloud, scheduler: Scheduler, seed: int
) -> None:
    """Only a released allocation leaves a provider's generation unchanged."""
    chance = random.Random(seed)  # noqa: S311
    cards = [
        card
        for host in range(3)
        for card in cloud.add_host(f"host{host}", a=4, b=4, c=4)[1].values()
    ]
    get = report_client.placement_getter()
    reader = fact_reader.FactReader(get)

    def fetch(identity: providers.Provider) -> providers.Provider:
        provider = provider_records.fetch_provider(get, identity)
        assert provider is not None
        return provider

    servers: list[str] = []
    for _ in range(12):
        change(cloud, chance, cards, servers)
        _, facts = ask(cloud, reader, cards)
        for card in cards:
            fetched = fetch(facts[card])
            cached = facts[card].capacities[names.MDEV_CLASS]
            current = fetched.capacities[names.MDEV_CLASS]
            assert facts[card].traits == fetched.traits
            assert (cached.capacity, fetched.is_exact) == (
                current.capacity,
                True,
            )
            assert cached.used >= current.used
    # The bulk read has no allocations of cards like these.
    exact = reader.confirm(memory(), cards).facts
    assert {
        card: dataclasses.replace(card_facts, allocations=None)
        for card, card_facts in exact.items()
    } == {
        card: dataclasses.replace(
            fetch(facts[card]), allocations=None, inventories={}
        )
        for card in cards
    }


LISTING = "/resource_providers"
CARD = ("inventories", "traits", "allocations")


def memory() -> fact_reader.RequestMemory:
    accelerators = request.parse_request(flavor_specs())
    return fact_reader.RequestMemory(request=accelerators)


def ask(
    cloud: Cloud, reader: fact_reader.FactReader, cards: Iterable[str]
) -> tuple[list[str], provider_facts.Facts]:
    """Return the paths that a new request reads, and its facts."""
    cloud.read_paths.clear()
    candidates = [
        {"allocations": {card: {"resources": {names.MDEV_CLASS: 1}}}}
        for card in cards
    ]
    # Two candidates for each of several hosts.
    snapshot = reader.read(
        memory(), "server", [[candidate] * 2 for candidate in candidates]
    )
    assert snapshot.problems == ()
    return list(cloud.read_paths), snapshot.facts


def change(
    cloud: Cloud, chance: random.Random, cards: list[str], servers: list[str]
) -> None:
    """Apply a random event between two requests."""
    card = chance.choice(cards)
    if servers and chance.random() < 0.4:
        cloud.call("DELETE", f"/allocations/{servers.pop()}")
    elif chance.random() < 0.4:
        traits = {names.DRAINED_TRAIT} if chance.random() < 0.5 else set()
        for trait in traits:
            cloud.call("PUT", f"/traits/{trait}")
        cloud.set_traits(card, names.OWNER_TRAIT, scheduling.PROFILE, *traits)
    elif len(servers) < 4:
        servers.append(cloud.take(card, 1))


def test_servers_without_accelerators_cause_no_query(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cloud.add_host("labvm", a=2, b=2)

    def read_on_boot() -> list[str]:
        cloud.read_paths.clear()
        scheduler.boot({}, count=2)
        return [
            re.sub(r"(/allocations/).*", r"\1", u) for u in cloud.read_paths
        ]

    with_filter = read_on_boot()
    scheduler.host_manager.enabled_filters.pop()
    request_filter.ALL_REQUEST_FILTERS.clear()
    assert with_filter == read_on_boot()


def test_two_groups_may_share_a_card_or_use_two(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=2, b=2)
    specs = {
        "resources_A:CUSTOM_MDEV": "1",
        "resources_B:CUSTOM_MDEV": "1",
        "group_policy": "isolate",
    }

    first, second = scheduler.boot(specs, count=2)

    both = dict.fromkeys(cards.values(), 1)
    assert cloud.list_mdevs(first) == cloud.list_mdevs(second) == both


@pytest.mark.parametrize("path", ["/inventories", "/traits"])
def test_a_failed_read_refuses_no_host(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger, path: str
) -> None:
    _, cards = cloud.add_host("labvm", a=4)
    cloud.broken = path

    servers = scheduler.boot(flavor_specs(2), count=2)

    assert [cloud.list_mdevs(s) for s in servers] == [{cards["a"]: 2}] * 2
    assert "Could not read provider data from Placement: GET" in log.output
    assert "ConnectFailure" in log.output


def test_candidates_keep_their_order_without_a_bulk_read(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=4)
    cloud.broken = names.OWNER_TRAIT

    servers = scheduler.boot(flavor_specs(4), count=2)

    providers = [provider for s in servers for provider in cloud.list_mdevs(s)]
    assert sorted(providers) == sorted(cards.values())
    assert "Could not read provider data from Placement" in log.output


def test_a_provider_that_changes_during_its_read_is_not_exact(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cards = cloud.add_host("labvm", a=1)
    cloud.take(cards["a"], 1)
    ask_placement = report_client.placement_getter()
    ask = cloud.client.get

    def get(url: str, **kwargs: object) -> object:
        answer = ask(url, **kwargs)
        if url.endswith("/inventories"):
            cloud.set_traits(cards["a"], names.OWNER_TRAIT)
        return answer

    identity = providers.Provider(uuid=cards["a"], capacities={})
    before = provider_records.fetch_provider(ask_placement, identity)
    monkeypatch.setattr(cloud.client, "get", get)
    after = provider_records.fetch_provider(ask_placement, identity)
    assert before is not None
    assert after is not None

    capacities = {
        names.MDEV_CLASS: providers.ClassCapacity(capacity=1, used=1)
    }
    allocations = ({names.MDEV_CLASS: 1},)
    assert (before.capacities, before.allocations, before.is_exact) == (
        capacities,
        allocations,
        True,
    )
    assert (after.capacities, after.allocations, after.is_exact) == (
        capacities,
        allocations,
        False,
    )
