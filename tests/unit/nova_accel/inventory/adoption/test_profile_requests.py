# SPDX-License-Identifier: Apache-2.0
"""Flavors of Nova's own vGPUs, rewritten to profiles."""

import pytest

from nova_accel.inventory.adoption import profile_requests

SMALL = profile_requests.ProfileRequest(
    trait="CUSTOM_VGPU_A", charges={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}
)
LARGE = profile_requests.ProfileRequest(
    trait="CUSTOM_VGPU_B", charges={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}
)


def group(suffix: str, trait: str, count: int, size: int) -> dict[str, str]:
    return {
        f"resources{suffix}:VGPU": str(count),
        f"resources{suffix}:CUSTOM_GPU_MEMORY_MB": str(count * size),
        f"trait{suffix}:{trait}": "required",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"resources:VGPU": "2"},
            group("_GPU", "CUSTOM_VGPU_A", 2, 4096),
        ),
        (
            {"resources1:VGPU": "1", "trait1:CUSTOM_RACK": "required"},
            group("1", "CUSTOM_VGPU_A", 1, 4096)
            | {"trait1:CUSTOM_RACK": "required"},
        ),
        (
            {
                "resources:VGPU": "1",
                "trait:CUSTOM_RACK": "required",
                "trait:HW_CPU_X86_AVX": "required",
            },
            group("_GPU", "CUSTOM_VGPU_A", 1, 4096)
            | {
                "trait_GPU:CUSTOM_RACK": "required",
                "trait:HW_CPU_X86_AVX": "required",
            },
        ),
        (
            {"resources:VGPU": "1", "resources_GPU:CUSTOM_FOO": "1"},
            group("_GPU2", "CUSTOM_VGPU_A", 1, 4096)
            | {"resources_GPU:CUSTOM_FOO": "1"},
        ),
        (
            {"resourcesA:CUSTOM_BIG": "1", "resourcesB:VGPU": "1"},
            group("A", "CUSTOM_VGPU_B", 1, 8192)
            | group("B", "CUSTOM_VGPU_A", 1, 4096),
        ),
        ({"hw:cpu_policy": "dedicated"}, {"hw:cpu_policy": "dedicated"}),
    ],
    ids=["two", "suffix", "traits", "taken name", "two classes", "none"],
)
def test_native_classes_become_profiles(
    before: dict[str, str], after: dict[str, str]
) -> None:
    profiles = {"VGPU": SMALL, "CUSTOM_BIG": LARGE}
    assert profile_requests.rewrite(before, profiles, {"CUSTOM_RACK"}) == after


def test_units_of_all_groups_are_counted() -> None:
    specs = {"resources:VGPU": "2", "resources1:VGPU": "1", "a": "b"}
    assert profile_requests.count_classes(specs, {"VGPU"}) == {"VGPU": 3}
    with pytest.raises(ValueError, match="many"):
        profile_requests.count_classes({"resources:VGPU": "many"}, {"VGPU"})
