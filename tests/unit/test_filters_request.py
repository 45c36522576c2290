# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from filters import request


def test_suffixed_groups_and_their_traits() -> None:
    parsed = request.parse_request(
        {
            "resources_GPU1:VGPU": "1",
            "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
            "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
            "trait_GPU1:CUSTOM_ACCELERATOR_DRAINED": "forbidden",
            "resources2:PGPU": "2",
            "resources:VCPU": "2",
            "group_policy": "none",
            "hw:cpu_policy": "dedicated",
        }
    )

    assert [g.suffix for g in parsed.groups] == ["2", "_GPU1"]
    gpu = parsed.groups[1]
    assert gpu.resources == {"CUSTOM_GPU_MEMORY_MB": 8192, "VGPU": 1}
    assert gpu.required == {"CUSTOM_VGPU_NVIDIA_A40_8Q"}
    assert gpu.forbidden == {"CUSTOM_ACCELERATOR_DRAINED"}
    assert parsed.classes == {"CUSTOM_GPU_MEMORY_MB", "PGPU", "VGPU"}


def test_of_the_unsuffixed_group_only_accelerators_are_ours() -> None:
    parsed = request.parse_request(
        {
            "resources:VGPU": "1",
            "resources:MEMORY_MB": "512",
            "trait:HW_CPU_X86_AVX2": "required",
        }
    )

    (group,) = parsed.groups
    assert group.suffix == ""
    assert group.resources == {"VGPU": 1}
    assert group.required == frozenset()


def test_a_group_of_any_class_that_requires_our_trait_is_ours() -> None:
    parsed = request.parse_request(
        {
            "resources_Q:CUSTOM_QAT_VF": "1",
            "trait_Q:CUSTOM_ACCELERATOR_VENDOR_INTEL": "required",
            "resources_NET:CUSTOM_NIC": "1",
            "trait_NET:CUSTOM_FAST": "required",
        }
    )

    assert [g.suffix for g in parsed.groups] == ["_Q"]


def test_nova_s_owner_trait_alone_makes_no_accelerator() -> None:
    parsed = request.parse_request(
        {"resources_X:CUSTOM_Y": "1", "trait_X:OWNER_NOVA": "required"}
    )

    assert parsed is request.NOTHING


def test_what_nova_ignores_is_ignored() -> None:
    parsed = request.parse_request(
        {
            "resources_A:VGPU": "many",
            "resources_B:VGPU": "0",
            "trait_C:CUSTOM_VGPU_X": "required",
            "resources_D:VGPU": "1",
            "trait_D:CUSTOM_VGPU_X": "perhaps",
            "resources:GPU1:VGPU": "1",
            "accel:device_profile": "x",
        }
    )

    (group,) = parsed.groups
    assert group.suffix == "_D"
    assert group.required == frozenset()


def test_a_group_in_words() -> None:
    parsed = request.parse_request(
        {
            "resources_A:VGPU": "1",
            "trait_A:CUSTOM_VGPU_X": "required",
            "trait_A:CUSTOM_Z": "forbidden",
        }
    )

    assert str(parsed.groups[0]) == "VGPU 1 with CUSTOM_VGPU_X, not CUSTOM_Z"


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=10)))
def test_any_extra_specs_are_read_without_error(
    extra_specs: dict[str, str]
) -> None:
    for group in request.parse_request(extra_specs).groups:
        assert all(amount > 0 for amount in group.resources.values())
