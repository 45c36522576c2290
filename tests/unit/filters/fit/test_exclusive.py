# SPDX-License-Identifier: Apache-2.0
"""A server whose flavor has packing exclusive has its cards to itself."""

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import request
from filters.fit import candidate_fit
from nova_accel import model
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled

UUIDS = ("a", "b")
CARDS = {
    "L40S": (model.Layout.EQUAL, model.Layout.MIXED),
    "A100": (model.Layout.MIXED, model.Layout.MIG),
}
# Consumers of one card: their units, and whether they are exclusive.
_Consumers = list[tuple[Mapping[str, int], bool]]


def ask(name: str, amounts: Mapping[str, int]) -> request.AcceleratorRequest:
    """Return an exclusive request for a type that takes some amounts."""
    query = scheduled.asks(name, packing="exclusive")
    (group,) = query.groups
    resources = {**group.resources, **amounts}
    groups = (dataclasses.replace(group, resources=resources),)
    return dataclasses.replace(query, groups=groups)


@st.composite
def requests(
    draw: st.DrawFn, gpu: str, layout: model.Layout
) -> request.AcceleratorRequest:
    """Draw a request; of an exclusive one any part of the card."""
    is_mig = layout is model.Layout.MIG
    types = [
        vgpu_type
        for vgpu_type in scheduled.CATALOG.profiles_of(gpu)
        if bool(vgpu_type.instance) == is_mig
    ]
    drawn = draw(st.sampled_from(types))
    if draw(st.booleans()):
        return scheduled.asks(drawn.name)
    whole = scheduled.CATALOG.charges(drawn, is_exclusive=True)
    part = draw(st.sampled_from([1, 1, 2, 4]))
    memory = max(whole[names.GPU_MEMORY_CLASS] // part, drawn.framebuffer_mb)
    return ask(drawn.name, {**whole, names.GPU_MEMORY_CLASS: memory})


@given(st.data(), st.sampled_from(sorted(CARDS)))
def test_no_neighbour_is_ever_placed_beside_an_exclusive_server(
    data: st.DataObject, gpu: str
) -> None:
    layout = data.draw(st.sampled_from(CARDS[gpu]))
    consumers: dict[str, _Consumers] = {uuid: [] for uuid in UUIDS}
    for _ in range(8):
        uuid = data.draw(st.sampled_from(UUIDS))
        is_deleted = data.draw(st.booleans())
        if consumers[uuid] and is_deleted:
            consumers[uuid].pop()
        query = data.draw(requests(gpu, layout))
        cards = {
            uuid: scheduled.card(
                uuid,
                *(units for units, _ in partitions),
                gpu=gpu,
                layout=layout,
            )
            for uuid, partitions in consumers.items()
        }
        fitting, _ = candidate_fit.select(
            query,
            scheduled.candidates(query, UUIDS),
            candidate_fit.HostFacts(facts=cards, geometry=scheduled.GEOMETRY),
        )
        for candidate in fitting[:1]:
            (uuid,) = candidate["mappings"]["_A"]
            units = candidate["allocations"][uuid]["resources"]
            packing = query.policy.packing
            is_exclusive = packing is flavors.Packing.EXCLUSIVE
            consumers[uuid].append((units, is_exclusive))
        for partitions in consumers.values():
            assert len(partitions) < 2 or not any(own for _, own in partitions)


def select(
    query: request.AcceleratorRequest, card: providers.Provider
) -> list[str]:
    """Return why a card is rejected, empty if it is not."""
    facts = candidate_fit.HostFacts(
        facts={card.uuid: card}, geometry=scheduled.GEOMETRY
    )
    candidates = scheduled.candidates(query, [card.uuid])
    _, rejections = candidate_fit.select(query, candidates, facts)
    return [rejection.cause for rejection in rejections.values()]


def test_a_refusal_of_a_part_names_what_it_takes() -> None:
    (cause,) = select(
        scheduled.asks("L40S-8Q", packing="exclusive"), scheduled.card("a")
    )

    assert cause == (
        "packing exclusive needs the whole device, and the flavor takes"
        " 8192 of 49152 CUSTOM_GPU_MEMORY_MB, 1 of 32 VGPU; see `openstack"
        " accel flavor set --packing exclusive`"
    )


@pytest.mark.parametrize("name", ["A100-1-5C", "A100-7-40C", "A100-1-5CME"])
def test_a_gpu_instance_takes_all_slices_of_its_card(name: str) -> None:
    whole = scheduled.CATALOG.charges(scheduled.kind(name), is_exclusive=True)
    card = scheduled.card("a", gpu="A100", layout=model.Layout.MIG)

    assert whole == {"VGPU": 1, **_measures(card)}
    assert not select(ask(name, whole), card)


def _measures(card: providers.Provider) -> dict[str, int]:
    return {
        name: capacity.capacity
        for name, capacity in card.capacities.items()
        if name in names.MEASURES
    }
