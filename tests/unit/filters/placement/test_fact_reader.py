# SPDX-License-Identifier: Apache-2.0
"""Provider data of a request are right, with a bounded number of queries."""

from typing import Any

import pytest

from filters import request
from filters.fit import fact_reader
from filters.placement import queries
from nova_accel import errors
from nova_accel.model import names
from placement_sync.client.provider_cache import FRESH_SECONDS, ProviderCache
from tests.support.placement import answers

(GROUP,) = request.parse_request({"resources:VGPU": "1"}).groups


# -- the bulk read ----------------------------------------------------------


def test_no_provider_before_the_first_report() -> None:
    """Placement refuses a trait that it has never stored."""

    def get(path: str) -> Any:
        raise errors.ServiceError(
            "GET",
            path,
            400,
            'Invalid trait(s) in "required" parameter: No such trait(s):'
            " CUSTOM_OWNER_NOVA_ACCEL.",
            "placement.undefined_code",
        )

    assert queries.fetch_summaries(get, GROUP) == {}


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("malformed", 400, "placement.undefined_code"),
        (
            "No such trait(s): CUSTOM_X",
            400,
            "placement.query.bad_value",
        ),
        ("busy", 503, ""),
        ("ConnectFailure()", None, ""),
    ],
)
def test_another_failure_is_an_error(
    reason: str, status: int | None, code: str
) -> None:
    def get(path: str) -> Any:
        raise errors.ServiceError("GET", path, status, reason, code)

    with pytest.raises(errors.ServiceError):
        queries.fetch_summaries(get, GROUP)


# -- number of queries --------------------------------------------------------


def test_a_few_cards_are_read_one_by_one_and_cached() -> None:
    placement = answers.Placement(2)
    reader = fact_reader.FactReader(placement.get)

    first = answers.read(reader, placement.providers).facts
    assert placement.calls() == [
        answers.LISTING,
        *answers.CARD * 2,
    ]
    assert answers.read(reader, placement.providers).facts == first
    assert placement.calls() == [answers.LISTING]


def test_many_cards_are_read_in_one_call() -> None:
    placement = answers.Placement(40)
    reader = fact_reader.FactReader(placement.get)

    first = answers.read(reader, placement.providers).facts
    assert placement.calls() == [answers.LISTING, answers.BULK]
    assert answers.read(reader, placement.providers).facts == first
    placement.change("card07", names.DRAINED_TRAIT)
    second = answers.read(reader, placement.providers).facts
    assert placement.calls() == [
        answers.LISTING,
        answers.LISTING,
        *answers.CARD,
    ]
    assert names.DRAINED_TRAIT in second["card07"].traits
    assert first["card07"].label == second["card07"].label == "node_card07"


def test_a_single_host_lists_only_its_tree() -> None:
    placement = answers.Placement(40)

    answers.read(fact_reader.FactReader(placement.get), ["card03"] * 2)

    assert "in_tree=card03" in placement.requests[0]


@pytest.mark.parametrize(
    ("specs", "calls"),
    [
        (answers.MDEV, []),
        ({**answers.MDEV, "accelerator:numa_policy": "none"}, []),
        (
            {**answers.MDEV, "accelerator:numa_policy": "required"},
            [answers.LISTING],
        ),
        (
            {**answers.MDEV, "accelerator:locality": "pcie"},
            [answers.LISTING],
        ),
        (answers.VGPU, [answers.LISTING]),
    ],
)
def test_a_single_candidate_needs_facts_only_for_a_policy_or_vgpu(
    specs: dict[str, str], calls: list[str]
) -> None:
    placement = answers.Placement(3)

    answers.read(
        fact_reader.FactReader(placement.get),
        placement.providers,
        specs,
        each=1,
    )

    assert placement.calls()[:1] == calls


def test_the_listing_requires_what_all_groups_require() -> None:
    placement = answers.Placement(4)
    specs = {
        "resources_A:VGPU": "2",
        "resources_A:CUSTOM_GPU_MEMORY_MB": "8",
        "trait_A:CUSTOM_VGPU_X": "required",
        "resources_B:VGPU": "1",
        "trait_B:CUSTOM_VGPU_X": "required",
        "trait_B:CUSTOM_OLD": "forbidden",
    }

    answers.read(
        fact_reader.FactReader(placement.get), placement.providers, specs
    )

    assert placement.requests[0] == (
        "/resource_providers?resources=VGPU:1"
        "&required=CUSTOM_OWNER_NOVA_ACCEL,CUSTOM_VGPU_X"
    )


def test_classes_of_the_unsuffixed_group_may_be_on_two_cards() -> None:
    placement = answers.Placement(4)
    specs = {"resources:VGPU": "2", "resources:CUSTOM_GPU_MEMORY_MB": "8"}

    answers.read(
        fact_reader.FactReader(placement.get), placement.providers, specs
    )

    assert placement.requests[0] == (
        "/resource_providers?required=CUSTOM_OWNER_NOVA_ACCEL"
    )


@pytest.mark.parametrize("count", [2, 20])
def test_foreign_cards_are_read_once(count: int) -> None:
    placement = answers.Placement(2)
    others = [f"card{number}" for number in range(50, 50 + count)]
    for uuid in others:
        placement.add(uuid, owned=False)
    reader = fact_reader.FactReader(placement.get)

    answers.read(reader, others)
    placement.calls()
    assert answers.read(reader, others).facts == {}
    assert placement.calls() == [answers.LISTING]

    placement.change("card50", names.OWNER_TRAIT)
    assert answers.read(reader, others).facts.keys() == {"card50"}


def test_the_cache_evicts_the_least_recently_used() -> None:
    placement = answers.Placement(4)
    reader = fact_reader.FactReader(placement.get, ProviderCache(3))

    answers.read(reader, ["card00", "card01"])
    answers.read(reader, ["card02", "card00"])
    answers.read(reader, ["card03", "card02"])
    placement.calls()

    answers.read(reader, ["card00", "card02", "card03"])
    assert placement.calls() == [answers.LISTING]
    answers.read(reader, ["card01", "card03"])
    assert placement.calls() == [answers.LISTING, *answers.CARD]


def test_a_recreated_provider_is_read_again_after_an_interval() -> None:
    placement, now = answers.Placement(2), [0.0]
    reader = fact_reader.FactReader(
        placement.get, ProviderCache(clock=lambda: now[0])
    )
    answers.read(reader, placement.providers)
    # Deleted and created again, up to the same generation.
    placement.providers["card00"]["total"][names.MDEV_CLASS] = 3

    now[0] = FRESH_SECONDS
    facts = answers.read(reader, placement.providers).facts

    assert facts["card00"].capacities[names.MDEV_CLASS].capacity == 3
    placement.calls()
    answers.read(reader, placement.providers)
    assert placement.calls() == [answers.LISTING]


def test_a_provider_with_another_name_is_read_again() -> None:
    placement = answers.Placement(2)
    reader = fact_reader.FactReader(placement.get)
    answers.read(reader, placement.providers)
    placement.providers["card00"]["total"][names.MDEV_CLASS] = 3
    placement.names["card00"] = "another_node_card00"

    facts = answers.read(reader, placement.providers).facts

    assert facts["card00"].capacities[names.MDEV_CLASS].capacity == 3


# -- allocations --------------------------------------------------------------


def test_allocations_are_read_if_used_units_are_ambiguous() -> None:
    placement = answers.Placement(10, answers.MIXED)
    placement.add("card20", names.layout_trait("equal"))
    for card in ("card01", "card20"):
        placement.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
        placement.take(f"also {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(placement.get)

    facts = answers.read(reader, placement.providers, answers.VGPU).facts

    assert placement.calls() == [
        answers.LISTING,
        answers.BULK,
        answers.ALLOCATIONS,
    ]
    assert facts["card00"].allocations == ()
    assert facts["card20"].allocations is None
    assert facts["card01"].allocations == (
        {"VGPU": 1, answers.MEMORY: 8},
        {"VGPU": 1, answers.MEMORY: 16},
    )
    assert (
        answers.read(reader, placement.providers, answers.VGPU).facts == facts
    )
    assert placement.calls() == [answers.LISTING]


def test_each_request_reads_a_part_of_many_used_cards() -> None:
    placement = answers.Placement(50, answers.MIXED)
    for card in placement.providers:
        placement.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(placement.get)

    reads = []
    for _ in range(3):
        facts = answers.read(reader, placement.providers, answers.VGPU).facts
        reads.append(placement.calls().count(answers.ALLOCATIONS))

    assert reads == [32, 18, 0]
    assert all(provider.allocations is not None for provider in facts.values())


def recreate(placement: answers.Placement, card: str, *sizes: int) -> None:
    """Delete and create a card, up to the same generation."""
    before = placement.providers[card]
    placement.servers = {
        s: h for s, h in placement.servers.items() if card not in h
    }
    placement.add(card, answers.MIXED)
    for size in sizes:
        units = {names.GPU_CLASS: 1, answers.MEMORY: size}
        placement.take(f"{size} on {card}", card, **units)
    assert placement.providers[card]["generation"] == before["generation"]


def test_allocations_of_a_recreated_card_expire() -> None:
    placement, now = answers.Placement(8, answers.MIXED), [0.0]
    placement.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    placement.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(
        placement.get, ProviderCache(clock=lambda: now[0])
    )
    answers.read(reader, placement.providers, answers.VGPU)
    recreate(placement, "card00", 24, 8)
    # A bulk read for the sake of other cards has the same sums.
    now[0] = FRESH_SECONDS - 1
    for number in range(1, 8):
        placement.change(f"card{number:02d}", names.DRAINED_TRAIT)
    answers.read(reader, placement.providers, answers.VGPU)

    now[0] = FRESH_SECONDS
    facts = answers.read(reader, placement.providers, answers.VGPU).facts[
        "card00"
    ]

    assert [each[answers.MEMORY] for each in facts.allocations or ()] == [
        24,
        8,
    ]


def test_a_bulk_read_does_not_retain_expired_allocations() -> None:
    placement, now = answers.Placement(8, answers.MIXED), [0.0]
    placement.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    placement.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(
        placement.get, ProviderCache(clock=lambda: now[0])
    )
    answers.read(reader, placement.providers, answers.VGPU)
    recreate(placement, "card00", 24, 8)

    now[0] = FRESH_SECONDS
    facts = answers.read(reader, placement.providers, answers.VGPU).facts[
        "card00"
    ]

    assert [each[answers.MEMORY] for each in facts.allocations or ()] == [
        24,
        8,
    ]


def test_a_confirmation_reads_allocations() -> None:
    placement = answers.Placement(8, answers.MIXED)
    placement.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    placement.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(placement.get)
    answers.read(reader, placement.providers, answers.VGPU)
    recreate(placement, "card00", 24, 8)
    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.VGPU)
    )

    facts = reader.confirm(memory, placement.providers).facts["card00"]

    assert [each[answers.MEMORY] for each in facts.allocations or ()] == [
        24,
        8,
    ]


# -- failures -----------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        answers.LISTING,
        "?",
        "/inventories",
        "/traits",
        "/allocations",
        answers.BULK,
    ],
)
@pytest.mark.parametrize("count", [3, 30])
def test_a_failed_read_is_a_problem_only(broken: str, count: int) -> None:
    placement = answers.Placement(count, answers.MIXED)
    placement.take("server1", "card00", VGPU=8, CUSTOM_GPU_MEMORY_MB=64)
    reader = fact_reader.FactReader(placement.get)
    accelerators = request.parse_request(answers.VGPU)
    memory = fact_reader.RequestMemory(request=accelerators)
    memory.servers["server1"] = fact_reader.FilteredServer()
    placement.broken = broken

    snapshot = reader.read(
        memory, "server2", answers.hosts(placement.providers, VGPU=1)
    )

    assert snapshot.problems or broken not in str(placement.requests)
    # The number of failed queries does not depend on the number of hosts.
    assert len(snapshot.problems) <= 4
    assert not [
        provider
        for provider in snapshot.facts.values()
        if provider.is_exact and not provider.traits
    ]
    placement.broken = "nothing"
    assert (
        len(answers.read(reader, placement.providers, answers.VGPU).facts)
        == count
    )


def test_cached_facts_are_used_without_a_listing() -> None:
    placement = answers.Placement(3)
    reader = fact_reader.FactReader(placement.get)
    before = answers.read(reader, placement.providers).facts

    placement.broken = answers.LISTING
    snapshot = answers.read(reader, placement.providers)

    assert snapshot.facts == before
    assert len(snapshot.problems) == 1


def test_a_deleted_provider_does_not_hide_the_others() -> None:
    placement = answers.Placement(3)
    reader = fact_reader.FactReader(placement.get)

    answers.read(reader, ["card00", "card02"])
    snapshot = answers.read(reader, ["card00", "gone", "card02"])

    assert snapshot.facts.keys() == {"card00", "card02"}
    assert not snapshot.problems


# -- exact facts --------------------------------------------------------------


def test_a_confirmation_is_exact_and_cached() -> None:
    placement = answers.Placement(2, answers.MIXED)
    placement.take("server1", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(placement.get)
    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.VGPU)
    )
    candidates = answers.hosts(placement.providers, VGPU=1)
    reader.read(memory, "server", candidates)
    # A deleted allocation raises no generation.
    del placement.servers["server1"]
    stale = reader.read(memory, "server", candidates).facts["card00"]
    assert stale.capacities["VGPU"].used == 1
    placement.calls()

    (provider,) = reader.confirm(memory, ["card00", "card00"]).facts.values()

    assert placement.calls() == answers.CARD
    assert (
        provider.is_exact,
        provider.allocations,
        provider.capacities["VGPU"].used,
    ) == (
        True,
        (),
        0,
    )
    placement.calls()
    same = reader.read(memory, "server2", candidates).facts["card00"]
    assert placement.calls() == ["/allocations/server"]
    assert same == provider
    other = answers.read(reader, placement.providers, answers.VGPU).facts[
        "card00"
    ]
    assert not other.is_exact
    assert (other.allocations, other.capacities) == (
        provider.allocations,
        provider.capacities,
    )


def test_a_card_that_changes_during_its_read_is_not_exact() -> None:
    placement = answers.Placement(1)

    def get(path: str) -> Any:
        if path.endswith("/allocations"):
            placement.take("other", "card00", CUSTOM_MDEV=1)
        return placement.get(path)

    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.MDEV)
    )
    snapshot = fact_reader.FactReader(get).confirm(memory, ["card00"])

    assert not snapshot.facts["card00"].is_exact
    assert snapshot.facts["card00"].capacities["CUSTOM_MDEV"].used == 1


@pytest.mark.parametrize("path", [answers.BULK, "/card00/allocations"])
def test_a_card_that_changes_during_a_bulk_read_is_not_exact(
    path: str,
) -> None:
    placement = answers.Placement(3, answers.MIXED)
    placement.take("server1", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)

    def get(url: str) -> Any:
        answer = placement.get(url)
        if path in url:
            placement.change("card00", names.DRAINED_TRAIT)
        return answer

    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.VGPU)
    )
    snapshot = fact_reader.FactReader(get).confirm(memory, placement.providers)

    exact = {
        uuid: provider.is_exact for uuid, provider in snapshot.facts.items()
    }
    assert exact == {"card00": False, "card01": True, "card02": True}


def test_a_card_that_placement_does_not_list_is_exact() -> None:
    """Placement itself refuses the card, too."""
    placement = answers.Placement(3)
    placement.take("server1", "card00", CUSTOM_MDEV=8)

    def get(path: str) -> Any:
        answer = placement.get(path)
        if answers.LISTING == path.partition("?")[0]:
            listed = answer["resource_providers"]
            listed[:] = [
                provider for provider in listed if provider["uuid"] != "card00"
            ]
        return answer

    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.MDEV)
    )
    snapshot = fact_reader.FactReader(get).confirm(memory, placement.providers)

    assert snapshot.facts["card00"].is_exact
    assert snapshot.facts["card00"].capacities["CUSTOM_MDEV"].free == 0


@pytest.mark.parametrize("count", [2, 60])
def test_all_doubtful_providers_are_confirmed_in_three_calls(
    count: int,
) -> None:
    placement = answers.Placement(count, answers.MIXED)
    reader = fact_reader.FactReader(placement.get)
    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.VGPU)
    )
    reader.read(memory, "server", answers.hosts(placement.providers, VGPU=1))
    placement.take("other", "card01", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    del placement.servers["other"]
    placement.change("card00", names.DRAINED_TRAIT)
    placement.calls()

    snapshot = reader.confirm(memory, placement.providers)

    assert placement.calls() == [
        answers.LISTING,
        answers.BULK,
        answers.LISTING,
    ]
    assert snapshot.facts.keys() == placement.providers.keys()
    assert all(provider.is_exact for provider in snapshot.facts.values())
    assert names.DRAINED_TRAIT in snapshot.facts["card00"].traits


def test_allocations_are_confirmed_for_some_dozens_of_cards() -> None:
    placement = answers.Placement(50, answers.MIXED)
    for card in placement.providers:
        placement.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(placement.get)
    reads = [
        answers.LISTING,
        answers.BULK,
        *[answers.ALLOCATIONS] * 32,
        answers.LISTING,
    ]

    # The second confirmation reads the others; the rest is cached.
    for unread in (18, 0):
        memory = fact_reader.RequestMemory(
            request=request.parse_request(answers.VGPU)
        )
        snapshot = reader.confirm(memory, placement.providers)

        assert placement.calls() == reads
        assert all(provider.is_exact for provider in snapshot.facts.values())
        allocations = [
            provider.allocations for provider in snapshot.facts.values()
        ]
        assert allocations.count(None) == unread


def test_a_card_is_read_again_only_after_another_allocation() -> None:
    placement = answers.Placement(2)
    reader = fact_reader.FactReader(placement.get)
    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.MDEV)
    )
    candidates = answers.hosts(placement.providers)
    reader.read(memory, "server1", candidates)
    placement.take("server1", "card00", CUSTOM_MDEV=1)
    reader.read(memory, "server2", candidates)
    placement.take("server2", "card01", CUSTOM_MDEV=1)
    placement.calls()

    facts = reader.read(memory, "server3", candidates).facts

    assert placement.calls() == ["/allocations/server2", *answers.CARD]
    assert facts["card00"].siblings == {"server1": ()}
    assert facts["card01"].siblings == {"server2": ()}
    assert all(provider.is_exact for provider in facts.values())
