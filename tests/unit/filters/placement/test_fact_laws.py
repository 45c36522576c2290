# SPDX-License-Identifier: Apache-2.0
"""What the filter remembers of providers is right, whatever happens."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from filters import request
from filters.fit import fact_reader
from tests.support.placement import answers

cards = st.integers(0, 11).map("card{:02d}".format)
events = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 5), cards),
        st.tuples(st.just("free"), st.integers(0, 5), cards),
        st.tuples(st.just("trait"), st.integers(0, 1), cards),
        st.tuples(st.just("ask"), st.integers(0, 1), cards),
        st.tuples(st.just("confirm"), st.integers(0, 1), cards),
    ),
    max_size=12,
)


@given(st.lists(events, min_size=1, max_size=3), st.integers(2, 12))
def test_remembered_facts_are_fresh_but_for_what_was_given_back(
    rounds: list[list[tuple[str, int, str]]], count: int
) -> None:
    book = answers.Book(12, answers.MIXED)
    reader = fact_reader.FactReader(book.get)
    named = list(book.providers)[:count]
    for happening in rounds:
        for what, number, card in happening:
            happen(book, reader, what, number, card)
        found = answers.ask(reader, named, answers.VGPU).facts
        assert found.keys() == set(named)
        for card in named:
            now = fact_reader.fetch_provider(book.get, found[card])
            assert found[card].traits == now.traits
            assert not found[card].exact
            for name, stock in now.stock.items():
                assert found[card].stock[name].capacity == stock.capacity
                assert found[card].stock[name].used >= stock.used
            was_held = found[card].held or ()
            assert all(held in was_held for held in now.held or ())
    memory = fact_reader.RequestMemory(
        wanted=request.parse_request(answers.VGPU)
    )
    for one in reader.confirm(memory, named).facts.values():
        assert one.exact
        assert one == fact_reader.fetch_provider(book.get, one)


def happen(
    book: answers.Book,
    reader: fact_reader.FactReader,
    what: str,
    number: int,
    card: str,
) -> None:
    wanted = request.parse_request(answers.VGPU)
    does: dict[str, Callable[[], object]] = {
        "take": lambda: book.take(
            f"server{number}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=number
        ),
        "free": lambda: book.servers.pop(f"server{number}", None),
        "trait": lambda: book.change(card, f"CUSTOM_VGPU_{number}"),
        "ask": lambda: answers.ask(reader, [card, "card00"], answers.VGPU),
        "confirm": lambda: reader.confirm(
            fact_reader.RequestMemory(wanted=wanted), [card]
        ),
    }
    does[what]()
