# SPDX-License-Identifier: Apache-2.0
"""Hosts are scored by fullness and by the share of preferred traits."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from nova.scheduler import host_manager

from filters import request
from filters.fit import provider_facts, scores
from nova_accel.geometry.scheduling import usable_share
from nova_accel.model import providers
from tests.support.scheduler import scheduled
from tests.support.scheduler.scheduled import GEOMETRY

A40 = "CUSTOM_ACCELERATOR_MODEL_NVIDIA_A40"
T4 = "CUSTOM_ACCELERATOR_MODEL_NVIDIA_T4"
ONE = request.parse_request(
    {"resources_A:VGPU": "1", "resources_A:CUSTOM_GPU_MEMORY_MB": "8192"}
)
FPGAS = request.parse_request(
    {"resources_A:FPGA": "1", "resources_B:FPGA": "1"}
)


def card(
    uuid: str,
    vgpus: tuple[int, int],
    memory: tuple[int, int],
    *traits: str,
) -> providers.Provider:
    units = {"VGPU": vgpus, "CUSTOM_GPU_MEMORY_MB": memory}
    return providers.Provider(
        uuid=uuid,
        capacities={
            name: providers.ClassCapacity(used=used, capacity=capacity)
            for name, (used, capacity) in units.items()
        },
        traits=frozenset(traits),
    )


def region(uuid: str, *traits: str) -> providers.Provider:
    return providers.Provider(
        uuid=uuid,
        capacities={"FPGA": providers.ClassCapacity(capacity=1, used=0)},
        traits=frozenset(traits),
    )


def takes(*uuids: str) -> provider_facts.Candidate:
    return {"allocations": {u: {"resources": {"FPGA": 1}} for u in uuids}}


def test_each_group_takes_its_room() -> None:
    groups = request.parse_request(
        {
            f"resources_{suffix}:{name}": amount
            for suffix in "AB"
            for name, amount in (
                ("VGPU", "1"),
                ("CUSTOM_GPU_MEMORY_MB", "8192"),
            )
        }
        | {f"trait_{suffix}:{A40}": "required" for suffix in "AB"}
    ).groups
    fitting = card("a", (7, 8), (0, 49152), A40)
    small = card("b", (0, 8), (0, 4096), A40)
    other = card("c", (0, 8), (0, 49152), T4)
    for cards, share in (
        ((), Fraction(0)),
        ((small, other), Fraction(0)),
        ((fitting,), Fraction(1, 2)),
        ((small, fitting, other, fitting), Fraction(1)),
    ):
        assert scores.room_share(groups, cards, GEOMETRY) == share


def test_a_group_without_a_place_has_no_room() -> None:
    """Two vGPUs of 16 GB fit on an L40S of mixed sizes, units for three."""
    groups = scheduled.asks(*["L40S-16Q"] * 3).groups
    cards = [scheduled.card("a")]

    assert scores.room_share(groups, cards, GEOMETRY) == Fraction(2, 3)


def test_the_fullest_class_counts() -> None:
    cards = [
        card("a", (1, 8), (40960, 49152)),
        card("b", (0, 8), (0, 49152)),
    ]
    assert scores.fullness(ONE, cards, frozenset("ab")) == Fraction(40, 96)


def test_only_cards_of_the_same_model_count() -> None:
    cards = [
        card("a", (0, 8), (0, 49152), A40, "CUSTOM_VGPU_NVIDIA_A40_8Q"),
        card("b", (8, 8), (49152, 49152), A40),
        card("c", (16, 16), (16384, 16384), T4),
    ]
    assert scores.fullness(ONE, cards, frozenset("a")) == Fraction(1, 2)


def test_an_unavailable_card_does_not_count() -> None:
    cards = [
        card("a", (2, 8), (16384, 65536), A40),
        card("b", (0, 0), (0, 0), A40),
    ]
    assert scores.fullness(ONE, cards, frozenset("a")) == Fraction(1, 4)
    assert scores.fullness(ONE, cards[1:], frozenset("b")) is None
    assert scores.fullness(ONE, (), frozenset("a")) is None


@given(st.lists(st.integers(0, 7), min_size=1))
def test_fullness_is_a_share_and_grows_with_use(used: list[int]) -> None:
    before, after = (
        scores.fullness(
            ONE,
            [
                card(str(n), (each + extra, 8), (each + extra, 8), A40)
                for n, each in enumerate(used)
            ],
            frozenset("0"),
        )
        for extra in (0, 1)
    )
    assert before is not None and after is not None
    assert 0 <= before < after <= 1


def test_the_best_candidate_has_most_of_the_traits() -> None:
    traits = frozenset({"CUSTOM_FPGA_FUNCTION_1", "CUSTOM_FPGA_FUNCTION_2"})
    cards = [
        region("a", "CUSTOM_FPGA_FUNCTION_1"),
        region("b", "CUSTOM_FPGA_FUNCTION_2"),
        region("c"),
    ]
    assert scores.trait_share(
        FPGAS, [takes("a", "c")], cards, traits
    ) == Fraction(1, 2)
    assert (
        scores.trait_share(
            FPGAS, [takes("a", "c"), takes("a", "b")], cards, traits
        )
        == 1
    )
    assert scores.trait_share(FPGAS, [takes("c", "d")], cards, traits) == 0
    assert scores.trait_share(FPGAS, [takes("a")], cards, frozenset()) == 0


def test_only_providers_of_accelerators_are_listed() -> None:
    candidate = {
        "allocations": {
            "root": {"resources": {"VCPU": 1}},
            "a": {"resources": {"FPGA": 1}},
        }
    }
    assert provider_facts.list_providers(FPGAS.classes, [candidate]) == ("a",)


def test_equal_losses_have_equal_ranks() -> None:
    losses = [
        usable_share.HostLoss(usable=0.5, free=1.0, vcpus=8.0),
        usable_share.HostLoss(usable=0.1, free=2.0, vcpus=8.0),
        usable_share.HostLoss(usable=0.5, free=1.0, vcpus=8.0),
        usable_share.HostLoss(usable=0.5, free=0.5, vcpus=9.0),
    ]

    assert scores.rank(losses) == [1 / 3, 1, 1 / 3, 1 / 2]
    assert scores.rank([]) == []


def test_room_has_the_ratios_of_a_host() -> None:
    host = host_manager.HostState("host", "node", "cell")

    assert scores.read_room(host) == usable_share.UNLIMITED

    host.vcpus_total, host.vcpus_used = 16, 10
    host.cpu_allocation_ratio, host.ram_allocation_ratio = 4.0, 1.5
    host.total_usable_ram_mb, host.free_ram_mb = 1000, 400

    assert scores.read_room(host) == usable_share.HostRoom(54.0, 900.0)


def test_a_loss_is_computed_again_once_the_host_has_changed() -> None:
    shares = usable_share.UsableShares(
        GEOMETRY, lambda: ((usable_share.build_shape(1, 1, ONE.groups), 1.0),)
    )
    losses = scores.RequestLosses(ONE, shares.measure())
    host = host_manager.HostState("host", "node", "cell")
    host.uuid, host.allocation_candidates = "host", [takes("a")]
    listed = []

    def list_cards(host: str, _: object) -> tuple[providers.Provider, ...]:
        listed.append(host)
        return (card("a", (0, 8), (0, 49152)),)

    def compute() -> usable_share.HostLoss:
        return losses.compute(host, (1, 1), list_cards)

    unlimited = compute()
    assert compute() == unlimited
    assert len(listed) == 1
    host.vcpus_total = 2
    assert compute().vcpus == 2
    host.allocation_candidates = [takes("a")]
    assert compute().vcpus == 2
    assert len(listed) == 3
