# SPDX-License-Identifier: Apache-2.0
"""Cached provider data equal Placement's after any sequence of events."""

import dataclasses
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from filters import request
from filters.fit import fact_reader
from placement_sync.client import provider_records
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
def test_cached_facts_are_fresh_except_for_released_units(
    rounds: list[list[tuple[str, int, str]]], count: int
) -> None:
    placement = answers.Placement(12, answers.MIXED)
    reader = fact_reader.FactReader(placement.get)
    named = list(placement.providers)[:count]
    for round_events in rounds:
        for event, number, card in round_events:
            apply_event(placement, reader, event, number, card)
        facts = answers.read(reader, named, answers.VGPU).facts
        assert facts.keys() == set(named)
        for card in named:
            current = provider_records.fetch_provider(
                placement.get, facts[card]
            )
            assert current is not None
            assert facts[card].traits == current.traits
            assert not facts[card].is_exact
            for name, capacity in current.capacities.items():
                assert (
                    facts[card].capacities[name].capacity == capacity.capacity
                )
                assert facts[card].capacities[name].used >= capacity.used
            cached_allocations = facts[card].allocations or ()
            assert all(
                allocation in cached_allocations
                for allocation in current.allocations or ()
            )
    memory = fact_reader.RequestMemory(
        request=request.parse_request(answers.VGPU)
    )
    for provider in reader.confirm(memory, named).facts.values():
        assert provider.is_exact
        current = provider_records.fetch_provider(placement.get, provider)
        assert current is not None
        # A bulk read has capacities only.
        assert dataclasses.replace(provider, inventories={}) == (
            dataclasses.replace(current, inventories={})
        )


def apply_event(
    placement: answers.Placement,
    reader: fact_reader.FactReader,
    event: str,
    number: int,
    card: str,
) -> None:
    accelerators = request.parse_request(answers.VGPU)
    events_by_name: dict[str, Callable[[], object]] = {
        "take": lambda: placement.take(
            f"server{number}", card, VGPU=1, CUSTOM_GPU_MEMORY_MB=number
        ),
        "free": lambda: placement.servers.pop(f"server{number}", None),
        "trait": lambda: placement.change(card, f"CUSTOM_VGPU_{number}"),
        "ask": lambda: answers.read(reader, [card, "card00"], answers.VGPU),
        "confirm": lambda: reader.confirm(
            fact_reader.RequestMemory(request=accelerators), [card]
        ),
    }
    events_by_name[event]()
