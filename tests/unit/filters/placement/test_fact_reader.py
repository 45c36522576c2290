# SPDX-License-Identifier: Apache-2.0
"""What is read of Placement, and how often."""

from typing import Any

import pytest

from filters import provider_facts, request
from filters.fit import fact_reader
from filters.placement import generation_cache, responses
from nova_accel.model import names
from tests.support.placement import answers

(GROUP,) = request.parse_request({"resources:VGPU": "1"}).groups


# -- the bulk read ----------------------------------------------------------


def test_before_the_first_host_reports_nothing_of_ours_is_offered() -> None:
    """Placement refuses a trait that nobody ever reported."""

    def get(path: str) -> Any:
        raise fact_reader.QueryError(
            path,
            'HTTP 400: {"errors": [{"detail": "No such trait(s):'
            ' CUSTOM_OWNER_NOVA_ACCEL."}]}',
        )

    assert responses.fetch_offers(get, GROUP) == {}


@pytest.mark.parametrize(
    "reason", ["HTTP 400: malformed", "HTTP 503: busy", "ConnectFailure()"]
)
def test_another_failure_stays_unknown(reason: str) -> None:
    def get(path: str) -> Any:
        raise fact_reader.QueryError(path, reason)

    with pytest.raises(fact_reader.QueryError):
        responses.fetch_offers(get, GROUP)


# -- malformed answers --------------------------------------------------------

CARD = provider_facts.ProviderFacts(uuid="card", stock={})


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
@pytest.mark.parametrize("part", ["inventories", "allocations"])
def test_a_provider_with_a_malformed_amount_is_not_known(
    part: str, amount: object
) -> None:
    answer = {
        "inventories": {
            "VGPU": {"total": 8, "reserved": 0, "allocation_ratio": 1.0}
        },
        "traits": [names.OWNER_TRAIT],
        "allocations": {"server": {"resources": {"VGPU": 1}}},
        "resource_provider_generation": 1,
    }
    malformed: dict[str, dict[str, object]] = {
        "inventories": {
            "VGPU": {"total": amount, "reserved": 0, "allocation_ratio": 1.0}
        },
        "allocations": {"server": {"resources": {"VGPU": amount}}},
    }

    with pytest.raises(fact_reader.QueryError):
        responses.fetch_provider(
            lambda path: {**answer, part: malformed[part]}, CARD
        )


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
@pytest.mark.parametrize("what", ["capacity", "used"])
def test_a_bulk_read_with_a_malformed_amount_is_an_error(
    what: str, amount: object
) -> None:
    summary: dict[str, object] = {
        "resources": {"VGPU": {"capacity": 8, "used": 0, what: amount}},
        "traits": [],
        "parent_provider_uuid": None,
        "root_provider_uuid": "root",
    }

    with pytest.raises(fact_reader.QueryError):
        responses.fetch_offers(
            lambda _: {"provider_summaries": {"card": summary}}, GROUP
        )


@pytest.mark.parametrize("amount", [float("inf"), "eight", None, [1]])
def test_a_server_with_a_malformed_amount_is_not_known(
    amount: object,
) -> None:
    answer = {"allocations": {"card": {"resources": {"VGPU": amount}}}}

    with pytest.raises(fact_reader.QueryError):
        responses.fetch_taken(lambda _: answer, "server")


# -- how often ----------------------------------------------------------------


def test_a_few_cards_are_read_one_by_one_and_then_remembered() -> None:
    book = answers.Book(2)
    reader = fact_reader.FactReader(book.get)

    first = answers.ask(reader, book.providers).facts
    assert book.calls() == [
        answers.LISTING,
        *answers.CARD * 2,
    ]
    assert answers.ask(reader, book.providers).facts == first
    assert book.calls() == [answers.LISTING]


def test_many_cards_are_read_in_one_call() -> None:
    book = answers.Book(40)
    reader = fact_reader.FactReader(book.get)

    first = answers.ask(reader, book.providers).facts
    assert book.calls() == [answers.LISTING, answers.BULK]
    assert answers.ask(reader, book.providers).facts == first
    book.change("card07", names.DRAINED_TRAIT)
    second = answers.ask(reader, book.providers).facts
    assert book.calls() == [
        answers.LISTING,
        answers.LISTING,
        *answers.CARD,
    ]
    assert names.DRAINED_TRAIT in second["card07"].traits
    assert first["card07"].label == second["card07"].label == "node_card07"


def test_of_one_host_only_its_tree_is_listed() -> None:
    book = answers.Book(40)

    answers.ask(fact_reader.FactReader(book.get), ["card03"] * 2)

    assert "in_tree=card03" in book.asked[0]


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
def test_without_a_choice_only_a_policy_or_a_vgpu_needs_facts(
    specs: dict[str, str], calls: list[str]
) -> None:
    book = answers.Book(3)

    answers.ask(
        fact_reader.FactReader(book.get), book.providers, specs, each=1
    )

    assert book.calls()[:1] == calls


def test_what_different_groups_have_in_common_is_listed() -> None:
    book = answers.Book(4)
    wanted = {
        "resources_A:VGPU": "2",
        "resources_A:CUSTOM_GPU_MEMORY_MB": "8",
        "trait_A:CUSTOM_VGPU_X": "required",
        "resources_B:VGPU": "1",
        "trait_B:CUSTOM_VGPU_X": "required",
        "trait_B:CUSTOM_OLD": "forbidden",
    }

    answers.ask(fact_reader.FactReader(book.get), book.providers, wanted)

    assert book.asked[0] == (
        "/resource_providers?resources=VGPU:1"
        "&required=CUSTOM_OWNER_NOVA_ACCEL,CUSTOM_VGPU_X"
    )


def test_the_classes_of_a_group_without_suffix_may_be_two_cards() -> None:
    book = answers.Book(4)
    wanted = {"resources:VGPU": "2", "resources:CUSTOM_GPU_MEMORY_MB": "8"}

    answers.ask(fact_reader.FactReader(book.get), book.providers, wanted)

    assert book.asked[0] == (
        "/resource_providers?required=CUSTOM_OWNER_NOVA_ACCEL"
    )


@pytest.mark.parametrize("count", [2, 20])
def test_cards_of_others_are_looked_at_once(count: int) -> None:
    book = answers.Book(2)
    others = [f"card{number}" for number in range(50, 50 + count)]
    for uuid in others:
        book.add(uuid, owned=False)
    reader = fact_reader.FactReader(book.get)

    answers.ask(reader, others)
    book.calls()
    assert answers.ask(reader, others).facts == {}
    assert book.calls() == [answers.LISTING]

    book.change("card50", names.OWNER_TRAIT)
    assert answers.ask(reader, others).facts.keys() == {"card50"}


def test_the_cache_forgets_who_was_not_asked_for_longest() -> None:
    book = answers.Book(4)
    reader = fact_reader.FactReader(
        book.get, generation_cache.GenerationCache(3)
    )

    answers.ask(reader, ["card00", "card01"])
    answers.ask(reader, ["card02", "card00"])
    answers.ask(reader, ["card03", "card02"])
    book.calls()

    answers.ask(reader, ["card00", "card02", "card03"])
    assert book.calls() == [answers.LISTING]
    answers.ask(reader, ["card01", "card03"])
    assert book.calls() == [answers.LISTING, *answers.CARD]


def test_a_provider_made_again_is_read_again_after_a_while() -> None:
    book, now = answers.Book(2), [0.0]
    reader = fact_reader.FactReader(
        book.get, generation_cache.GenerationCache(clock=lambda: now[0])
    )
    answers.ask(reader, book.providers)
    # Deleted and created again, up to the same generation.
    book.providers["card00"]["total"][names.MDEV_CLASS] = 3

    now[0] = generation_cache.FRESH_SECONDS
    found = answers.ask(reader, book.providers).facts

    assert found["card00"].stock[names.MDEV_CLASS].capacity == 3
    book.calls()
    answers.ask(reader, book.providers)
    assert book.calls() == [answers.LISTING]


def test_a_provider_under_another_name_is_another_one() -> None:
    book = answers.Book(2)
    reader = fact_reader.FactReader(book.get)
    answers.ask(reader, book.providers)
    book.providers["card00"]["total"][names.MDEV_CLASS] = 3
    book.names["card00"] = "another_node_card00"

    found = answers.ask(reader, book.providers).facts

    assert found["card00"].stock[names.MDEV_CLASS].capacity == 3


# -- what consumers hold ------------------------------------------------------


def test_who_holds_what_is_read_where_sums_do_not_tell() -> None:
    book = answers.Book(10, answers.MIXED)
    book.add("card20", names.layout_trait("equal"))
    for card in ("card01", "card20"):
        book.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
        book.take(f"also {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(book.get)

    found = answers.ask(reader, book.providers, answers.VGPU).facts

    assert book.calls() == [
        answers.LISTING,
        answers.BULK,
        answers.HELD,
    ]
    assert found["card00"].held == ()
    assert found["card20"].held is None
    assert found["card01"].held == (
        {"VGPU": 1, answers.MEMORY: 8},
        {"VGPU": 1, answers.MEMORY: 16},
    )
    assert answers.ask(reader, book.providers, answers.VGPU).facts == found
    assert book.calls() == [answers.LISTING]


def test_of_many_used_cards_each_request_reads_some() -> None:
    book = answers.Book(50, answers.MIXED)
    for card in book.providers:
        book.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(book.get)

    reads = []
    for _ in range(3):
        found = answers.ask(reader, book.providers, answers.VGPU).facts
        reads.append(book.calls().count(answers.HELD))

    assert reads == [32, 18, 0]
    assert all(one.held is not None for one in found.values())


def make_again(book: answers.Book, card: str, *sizes: int) -> None:
    """Delete and create a card, up to the same generation."""
    before = book.providers[card]
    book.servers = {s: h for s, h in book.servers.items() if card not in h}
    book.add(card, answers.MIXED)
    for size in sizes:
        units = {names.GPU_CLASS: 1, answers.MEMORY: size}
        book.take(f"{size} on {card}", card, **units)
    assert book.providers[card]["generation"] == before["generation"]


def test_holdings_of_a_card_made_again_expire() -> None:
    book, now = answers.Book(8, answers.MIXED), [0.0]
    book.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    book.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(
        book.get, generation_cache.GenerationCache(clock=lambda: now[0])
    )
    answers.ask(reader, book.providers, answers.VGPU)
    make_again(book, "card00", 24, 8)
    # A bulk read for the sake of other cards has the same sums.
    now[0] = generation_cache.FRESH_SECONDS - 1
    for number in range(1, 8):
        book.change(f"card{number:02d}", names.DRAINED_TRAIT)
    answers.ask(reader, book.providers, answers.VGPU)

    now[0] = generation_cache.FRESH_SECONDS
    found = answers.ask(reader, book.providers, answers.VGPU).facts["card00"]

    assert [each[answers.MEMORY] for each in found.held or ()] == [
        24,
        8,
    ]


def test_expired_holdings_are_not_taken_over_by_a_bulk_read() -> None:
    book, now = answers.Book(8, answers.MIXED), [0.0]
    book.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    book.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(
        book.get, generation_cache.GenerationCache(clock=lambda: now[0])
    )
    answers.ask(reader, book.providers, answers.VGPU)
    make_again(book, "card00", 24, 8)

    now[0] = generation_cache.FRESH_SECONDS
    found = answers.ask(reader, book.providers, answers.VGPU).facts["card00"]

    assert [each[answers.MEMORY] for each in found.held or ()] == [
        24,
        8,
    ]


def test_a_confirmation_reads_what_consumers_hold() -> None:
    book = answers.Book(8, answers.MIXED)
    book.take("16 on card00", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    book.take("also", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=16)
    reader = fact_reader.FactReader(book.get)
    answers.ask(reader, book.providers, answers.VGPU)
    make_again(book, "card00", 24, 8)
    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.VGPU)
    )

    found = reader.confirm(memory, book.providers).facts["card00"]

    assert [each[answers.MEMORY] for each in found.held or ()] == [
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
def test_a_failed_read_is_a_problem_and_no_more(
    broken: str, count: int
) -> None:
    book = answers.Book(count, answers.MIXED)
    book.take("server1", "card00", VGPU=8, CUSTOM_GPU_MEMORY_MB=64)
    reader = fact_reader.FactReader(book.get)
    wanted = request.parse_request(answers.VGPU)
    memory = fact_reader.RequestMemory(wanted=wanted)
    memory.seen.append("server1")
    book.broken = broken

    look = reader.look(
        memory, "server2", answers.hosts(book.providers, VGPU=1)
    )

    assert look.problems or broken not in str(book.asked)
    # None is asked for in vain as often as there are told.hosts.
    assert len(look.problems) <= 4
    assert not [
        one for one in look.facts.values() if one.exact and not one.traits
    ]
    book.broken = "nothing"
    assert (
        len(answers.ask(reader, book.providers, answers.VGPU).facts) == count
    )


def test_without_a_listing_what_is_remembered_serves() -> None:
    book = answers.Book(3)
    reader = fact_reader.FactReader(book.get)
    before = answers.ask(reader, book.providers).facts

    book.broken = answers.LISTING
    look = answers.ask(reader, book.providers)

    assert look.facts == before
    assert len(look.problems) == 1


def test_a_provider_that_is_gone_does_not_hide_the_others() -> None:
    book = answers.Book(3)
    reader = fact_reader.FactReader(book.get)

    answers.ask(reader, ["card00", "card02"])
    look = answers.ask(reader, ["card00", "gone", "card02"])

    assert look.facts.keys() == {"card00", "card02"}
    (problem,) = look.problems
    assert "HTTP 404" in str(problem)


# -- exact facts --------------------------------------------------------------


def test_a_confirmation_is_exact_and_remembered() -> None:
    book = answers.Book(2, answers.MIXED)
    book.take("server1", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(book.get)
    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.VGPU)
    )
    candidates = answers.hosts(book.providers, VGPU=1)
    reader.look(memory, "server", candidates)
    # What is given back raises no generation.
    del book.servers["server1"]
    stale = reader.look(memory, "server", candidates).facts["card00"]
    assert stale.stock["VGPU"].used == 1
    book.calls()

    (one,) = reader.confirm(memory, ["card00", "card00"]).facts.values()

    assert book.calls() == answers.CARD
    assert (one.exact, one.held, one.stock["VGPU"].used) == (True, (), 0)
    book.calls()
    same = reader.look(memory, "server2", candidates).facts["card00"]
    assert book.calls() == ["/allocations/server"]
    assert same == one
    other = answers.ask(reader, book.providers, answers.VGPU).facts["card00"]
    assert not other.exact
    assert (other.held, other.stock) == (one.held, one.stock)


def test_a_change_while_it_is_read_is_not_exact() -> None:
    book = answers.Book(1)

    def get(path: str) -> Any:
        if path.endswith("/allocations"):
            book.take("other", "card00", CUSTOM_MDEV=1)
        return book.get(path)

    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.MDEV)
    )
    look = fact_reader.FactReader(get).confirm(memory, ["card00"])

    assert not look.facts["card00"].exact
    assert look.facts["card00"].stock["CUSTOM_MDEV"].used == 1


@pytest.mark.parametrize("path", [answers.BULK, "/card00/allocations"])
def test_a_change_while_many_are_read_is_not_exact(path: str) -> None:
    book = answers.Book(3, answers.MIXED)
    book.take("server1", "card00", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)

    def get(asked: str) -> Any:
        answer = book.get(asked)
        if path in asked:
            book.change("card00", names.DRAINED_TRAIT)
        return answer

    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.VGPU)
    )
    look = fact_reader.FactReader(get).confirm(memory, book.providers)

    exact = {uuid: one.exact for uuid, one in look.facts.items()}
    assert exact == {"card00": False, "card01": True, "card02": True}


def test_a_card_that_placement_lists_no_more_is_exact() -> None:
    """It refuses what Placement refuses too."""
    book = answers.Book(3)
    book.take("server1", "card00", CUSTOM_MDEV=8)

    def get(asked: str) -> Any:
        answer = book.get(asked)
        if answers.LISTING == asked.partition("?")[0]:
            listed = answer["resource_providers"]
            listed[:] = [one for one in listed if one["uuid"] != "card00"]
        return answer

    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.MDEV)
    )
    look = fact_reader.FactReader(get).confirm(memory, book.providers)

    assert look.facts["card00"].exact
    assert look.facts["card00"].stock["CUSTOM_MDEV"].left == 0


@pytest.mark.parametrize("count", [2, 60])
def test_all_doubtful_providers_are_confirmed_in_three_calls(
    count: int,
) -> None:
    book = answers.Book(count, answers.MIXED)
    reader = fact_reader.FactReader(book.get)
    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.VGPU)
    )
    reader.look(memory, "server", answers.hosts(book.providers, VGPU=1))
    book.take("other", "card01", VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    del book.servers["other"]
    book.change("card00", names.DRAINED_TRAIT)
    book.calls()

    look = reader.confirm(memory, book.providers)

    assert book.calls() == [
        answers.LISTING,
        answers.BULK,
        answers.LISTING,
    ]
    assert look.facts.keys() == book.providers.keys()
    assert all(one.exact for one in look.facts.values())
    assert names.DRAINED_TRAIT in look.facts["card00"].traits


def test_consumers_that_sums_do_not_tell_are_read_for_some_dozens() -> None:
    book = answers.Book(50, answers.MIXED)
    for card in book.providers:
        book.take(f"on {card}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=8)
    reader = fact_reader.FactReader(book.get)
    reads = [
        answers.LISTING,
        answers.BULK,
        *[answers.HELD] * 32,
        answers.LISTING,
    ]

    # The second one reads the others, and remembers the rest.
    for unknown in (18, 0):
        memory = fact_reader.RequestMemory(
            wanted=request.parse_request(answers.VGPU)
        )
        look = reader.confirm(memory, book.providers)

        assert book.calls() == reads
        assert all(one.exact for one in look.facts.values())
        held = [one.held for one in look.facts.values()]
        assert held.count(None) == unknown


def test_a_card_is_read_again_only_after_another_server_took_from_it() -> None:
    book = answers.Book(2)
    reader = fact_reader.FactReader(book.get)
    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.MDEV)
    )
    candidates = answers.hosts(book.providers)
    reader.look(memory, "server1", candidates)
    book.take("server1", "card00", CUSTOM_MDEV=1)
    reader.look(memory, "server2", candidates)
    book.take("server2", "card01", CUSTOM_MDEV=1)
    book.calls()

    found = reader.look(memory, "server3", candidates).facts

    assert book.calls() == ["/allocations/server2", *answers.CARD]
    assert found["card00"].taken_by == ("server1",)
    assert found["card01"].taken_by == ("server2",)
    assert all(one.exact for one in found.values())
