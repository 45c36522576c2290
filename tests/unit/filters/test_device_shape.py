# SPDX-License-Identifier: Apache-2.0
"""Shapes of devices are equal where guests would see equal trees."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.fit import device_shape
from nova_accel.model import names, providers

Place = tuple[str, int, int]
PORTS = ("0000:16:01.0", "0000:16:02.0", "0000:96:01.0", "10000:00:01.0")
places = st.tuples(
    st.sampled_from(PORTS), st.integers(0, 1), st.integers(1, 2)
)


def device(port: str, node: int = 0, units: int = 1) -> device_shape.Device:
    traits = {
        names.OWNER_TRAIT,
        names.pcie_trait(port),
        names.custom_name("ACCELERATOR", "NUMA", str(node)),
    }
    amounts = {"VGPU": units, names.GPU_MEMORY_CLASS: 1024 * units}
    return frozenset(traits), amounts


def build(*drawn: Place) -> device_shape.Shape:
    return device_shape.build(device(*place) for place in drawn)


@given(st.lists(places, max_size=6), st.integers())
def test_order_and_names_have_no_effect(drawn: list[Place], seed: int) -> None:
    shuffled = random.Random(seed).sample(drawn, len(drawn))  # noqa: S311
    assert build(*shuffled) == build(*drawn)
    # Another host, whose buses and nodes have other numbers.
    other = [
        (port.replace(":16:", ":60:").replace(":96:", ":20:"), 1 - node, units)
        for port, node, units in shuffled
    ]
    assert build(*other) == build(*drawn)


TOGETHER = (("0000:16:01.0", 0, 1), ("0000:16:01.0", 0, 1))


@pytest.mark.parametrize(
    "other",
    [
        (TOGETHER[0], ("0000:16:02.0", 0, 1)),
        (TOGETHER[0], ("0000:96:01.0", 0, 1)),
        (TOGETHER[0], ("0000:96:01.0", 1, 1)),
        (("0000:16:01.0", 0, 2),),
        (),
    ],
    ids=["port", "root complex", "NUMA node", "one card", "none"],
)
def test_another_shape(other: tuple[Place, ...]) -> None:
    assert build(*other) != build(*TOGETHER)


def test_the_shape_of_a_candidate() -> None:
    """The compute node and unknown providers are no part of it."""
    facts = {
        uuid: providers.Provider(uuid=uuid, capacities={}, traits=traits)
        for uuid, (traits, _) in zip(
            "ab", (device(port) for port, *_ in TOGETHER), strict=True
        )
    }
    candidate = {
        "allocations": {
            "root": {"resources": {"VCPU": 4, "MEMORY_MB": 8}},
            "a": {"resources": {"VGPU": 1, names.GPU_MEMORY_CLASS: 4096}},
            "b": {"resources": {"VGPU": 1, names.GPU_MEMORY_CLASS: 8192}},
            "unknown": {"resources": {"VGPU": 1}},
        }
    }
    classes = frozenset({"VGPU", names.GPU_MEMORY_CLASS})
    assert device_shape.of_candidate(candidate, facts, classes) == build(
        *TOGETHER
    )
