# SPDX-License-Identifier: Apache-2.0
"""A refusal names its reasons in the log, but no host in the fault."""

import dataclasses

from filters import request
from filters.fit import no_candidates
from nova_accel.model import providers

SPECS = {
    "resources_A:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_A:CUSTOM_VGPU_X": "required",
    "trait_A:CUSTOM_ACCELERATOR_DRAINED": "forbidden",
}
(GROUP,) = request.parse_request(SPECS).groups
# Nova keeps 255 characters of a fault and puts "No valid host was found.
# Scheduling failed: " before the reason.
ROOM = 255 - 45


def card(
    uuid: str, vgpu: tuple[int, int], memory: tuple[int, int], *traits: str
) -> providers.Provider:
    return providers.Provider(
        uuid=uuid,
        capacities={
            "VGPU": providers.ClassCapacity(capacity=vgpu[0], used=vgpu[1]),
            "CUSTOM_GPU_MEMORY_MB": providers.ClassCapacity(
                capacity=memory[0], used=memory[1]
            ),
        },
        traits=frozenset(traits),
    )


def describe(
    *providers: providers.Provider,
) -> no_candidates.GroupRefusal:
    names = {"u1": "host1_accel_1", "u2": "host2_accel_1"}
    return no_candidates.describe(GROUP, providers, names)


def test_no_provider_has_the_class() -> None:
    root = providers.Provider(
        uuid="root",
        capacities={"VCPU": providers.ClassCapacity(capacity=8, used=0)},
    )

    refusal = describe(root)

    assert (
        refusal.summary == "no accelerator offers CUSTOM_GPU_MEMORY_MB, VGPU"
    )
    assert refusal.details == ()


def test_the_profile_is_not_offered_now() -> None:
    refusal = describe(
        card("u2", (4, 1), (32768, 8192), "CUSTOM_VGPU_Y"),
        card("u1", (4, 4), (32768, 32768)),
    )

    assert refusal.summary == (
        "no accelerator offers CUSTOM_GPU_MEMORY_MB, VGPU with"
        " CUSTOM_VGPU_X, not CUSTOM_ACCELERATOR_DRAINED now"
    )
    assert refusal.details == (
        "CUSTOM_GPU_MEMORY_MB 24576 of 65536 left on 2, at most 24576 on"
        " one; VGPU 3 of 8 left on 2, at most 3 on one",
        "host1_accel_1: does not offer CUSTOM_VGPU_X now,"
        " CUSTOM_GPU_MEMORY_MB 0 of 32768 left, 8192 needed,"
        " VGPU 0 of 4 left, 1 needed",
        "host2_accel_1: does not offer CUSTOM_VGPU_X now",
    )


def test_all_providers_of_the_profile_are_full() -> None:
    refusal = describe(
        card("u1", (4, 4), (32768, 0), "CUSTOM_VGPU_X"),
        card("u2", (4, 0), (32768, 0)),
    )

    assert refusal.summary == (
        "no accelerator has room for CUSTOM_GPU_MEMORY_MB 8192, VGPU 1 with"
        " CUSTOM_VGPU_X, not CUSTOM_ACCELERATOR_DRAINED"
    )
    assert refusal.details[:2] == (
        "CUSTOM_GPU_MEMORY_MB 32768 of 32768 left on 1; VGPU 0 of 4 left on 1",
        "host1_accel_1: VGPU 0 of 4 left, 1 needed",
    )
    assert str(refusal).startswith(refusal.summary + "; CUSTOM_GPU_MEMORY_MB")


def test_a_forbidden_trait_and_a_missing_class_are_named() -> None:
    bare = providers.Provider(
        uuid="u2",
        capacities={"VGPU": providers.ClassCapacity(capacity=4, used=0)},
        traits=frozenset({"CUSTOM_VGPU_X"}),
    )
    refusal = describe(
        card(
            "u1",
            (4, 0),
            (32768, 0),
            "CUSTOM_VGPU_X",
            "CUSTOM_ACCELERATOR_DRAINED",
        ),
        bare,
    )

    assert (
        "has CUSTOM_ACCELERATOR_DRAINED, which the flavor forbids"
        in refusal.details[1]
    )
    assert "has no CUSTOM_GPU_MEMORY_MB" in refusal.details[2]


def test_free_units_that_placement_refuses() -> None:
    refusal = describe(card("u1", (4, 0), (32768, 0), "CUSTOM_VGPU_X"))

    assert "see max_unit" in refusal.details[1]


def test_the_fault_names_no_host_and_is_short() -> None:
    refusal = describe(card("u1", (4, 4), (32768, 32768), "CUSTOM_VGPU_X"))

    assert "host1" not in refusal.fault
    assert len(refusal.fault) <= ROOM


def test_of_another_device_than_the_named_one_nothing_else_is_said() -> None:
    pin = "CUSTOM_DEVICE_AT_HOST1_0000_65_00_0"
    group = dataclasses.replace(GROUP, required=GROUP.required | {pin})

    for traits in (frozenset[str](), GROUP.required):
        text = no_candidates.describe_missing(group, traits, {})
        assert text == f"is not the device of {pin}"
    text = no_candidates.describe_missing(group, frozenset({pin}), {})
    assert "has no VGPU" in text and pin not in text


def test_the_fault_names_no_pinned_device() -> None:
    """Its trait names a host and a PCI address."""
    pin = "CUSTOM_DEVICE_AT_HOST1_0000_65_00_0"
    group = dataclasses.replace(GROUP, required=GROUP.required | {pin})

    refusal = no_candidates.describe(
        group, [card("u1", (4, 4), (32768, 32768), "CUSTOM_VGPU_X")], {}
    )

    assert "with one device, CUSTOM_VGPU_X" in refusal.fault
    assert "HOST1" not in refusal.fault
    assert pin in str(refusal)


def test_a_large_cloud_does_not_flood_the_log() -> None:
    refusal = describe(*(card(f"u{n:03}", (1, 1), (1, 1)) for n in range(100)))

    assert len(refusal.details) == 22
    assert refusal.details[-1] == "and 80 more"


def test_long_lists_of_reasons_are_shortened() -> None:
    reasons = [f"card{n}" for n in range(30)]

    assert no_candidates.limit_lines([*reasons, *reasons], 24) == [
        *reasons[:24],
        "and 6 more",
    ]
    assert no_candidates.limit_lines(["a", "b", "a"], 2) == ["a", "b"]
