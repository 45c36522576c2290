# SPDX-License-Identifier: Apache-2.0
"""Accelerator groups and policies are parsed from extra specs."""

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filters import request
from nova_accel import errors
from nova_accel.model import flavors


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


def test_only_accelerators_of_the_unsuffixed_group_are_selected() -> None:
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


def test_a_group_that_requires_an_accelerator_trait_is_selected() -> None:
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

    assert parsed is request.NO_ACCELERATORS


def test_malformed_specs_are_ignored() -> None:
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


def test_the_text_of_a_group() -> None:
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
    extra_specs: dict[str, str],
) -> None:
    for group in request.parse_request(extra_specs).groups:
        assert all(amount > 0 for amount in group.resources.values())


# -- policies ---------------------------------------------------------------

ASKS = {"resources_A:VGPU": "1"}
KEYS = {
    "numa_policy": flavors.NumaPolicy,
    "locality": flavors.Locality,
    "packing": flavors.Packing,
}


def test_the_default_policy() -> None:
    assert request.parse_request(ASKS).policy == flavors.SelectionPolicy(
        numa=flavors.NumaPolicy.PREFERRED,
        locality=flavors.Locality.ANY,
        packing=flavors.Packing.BEST_REMAINING,
    )


@given(
    st.fixed_dictionaries(
        {}, optional={k: st.sampled_from(w) for k, w in KEYS.items()}
    ),
    st.sampled_from([str, str.upper, " {} ".format]),
)
def test_values_are_read_in_any_case(
    chosen: dict[str, flavors.SpecValue], spell: Callable[[str], str]
) -> None:
    parsed = request.parse_request(
        ASKS | {f"accelerator:{k}": spell(w.value) for k, w in chosen.items()}
    )

    usual = flavors.DEFAULT_POLICY
    assert parsed.policy == flavors.SelectionPolicy(
        **{
            "numa": chosen.get("numa_policy", usual.numa),
            "locality": chosen.get("locality", usual.locality),
            "packing": chosen.get("packing", usual.packing),
        }  # type: ignore[arg-type]
    )


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=20))
def test_another_value_is_refused_with_the_allowed_ones(
    key: str, text: str
) -> None:
    allowed = [word.value for word in KEYS[key]]
    assume(text.strip().lower() not in allowed)
    wrong = {f"accelerator:{key}": text}

    with pytest.raises(errors.MalformedError) as caught:
        request.parse_request(ASKS | wrong)

    assert f"accelerator:{key}" in str(caught.value)
    assert ", ".join(allowed) in str(caught.value)
    # Without accelerators the policies are not validated.
    assert request.parse_request(wrong) is request.NO_ACCELERATORS


SUFFIXES = st.sampled_from(["", "_A", "1"])
CLASSES = ["VGPU", "CUSTOM_MDEV", "CUSTOM_PCI_144D_A824", "VCPU", "CUSTOM_X"]
TRAITS = ["CUSTOM_VGPU_NVIDIA_T4_4Q", "CUSTOM_OTHER", "OWNER_NOVA"]


@given(
    st.dictionaries(
        st.builds("resources{}:{}".format, SUFFIXES, st.sampled_from(CLASSES)),
        st.sampled_from(["0", "1", "4", "-1", "x", ""]),
    ),
    st.dictionaries(
        st.builds("trait{}:{}".format, SUFFIXES, st.sampled_from(TRAITS)),
        st.sampled_from(["required", "forbidden", "x"]),
    ),
)
def test_a_group_is_selected_by_class_or_trait(
    amounts: dict[str, str], traits: dict[str, str]
) -> None:
    parsed = request.parse_request(amounts | traits)

    for suffix in ("", "_A", "1"):
        expected = {
            name: int(amount)
            for name in CLASSES
            if (amount := amounts.get(f"resources{suffix}:{name}", "0"))
            in ("1", "4")
        }
        accelerators = {n: a for n, a in expected.items() if n in CLASSES[:3]}
        has_trait = traits.get(f"trait{suffix}:{TRAITS[0]}") == "required"
        if not suffix:
            expected, has_trait = accelerators, False
        groups = [g for g in parsed.groups if g.suffix == suffix]
        if expected and (accelerators or has_trait):
            (group,) = groups
            assert group.resources == expected
        else:
            assert not groups
