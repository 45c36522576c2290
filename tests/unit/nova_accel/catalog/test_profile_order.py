# SPDX-License-Identifier: Apache-2.0
"""Choices of a flavor, from its list of profiles."""

import pytest

from nova_accel import errors
from nova_accel.catalog import extra_specs, loader, profile_order

CATALOG = loader.load()
A40 = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}


def list_choices(value: str, **specs: str) -> dict[str, dict[str, str]]:
    choices = profile_order.list_choices(
        {**A40, **specs, profile_order.KEY: value}, CATALOG
    )
    return {choice.name: dict(choice.specs) for choice in choices}


def test_each_choice_has_the_specs_of_its_profile() -> None:
    assert list_choices("A40-8Q, T4-4Q", other="x") == {
        "A40-8Q": {**A40, "other": "x"},
        "T4-4Q": {
            "resources_GPU1:VGPU": "1",
            "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "4096",
            "trait_GPU1:CUSTOM_VGPU_NVIDIA_T4_4Q": "required",
            "other": "x",
        },
    }


def test_units_of_instances_come_and_go() -> None:
    mig = list_choices("A40-8Q,A100-2-10C")["A100-2-10C"]
    assert mig["resources_GPU1:CUSTOM_MIG_SLICE"] == "2"
    specs = {
        "resources_A:VGPU": "1",
        "resources_A:CUSTOM_GPU_MEMORY_MB": "10240",
        "resources_A:CUSTOM_MIG_SLICE": "2",
        "trait_A:CUSTOM_VGPU_NVIDIA_A100_2_10C": "required",
        profile_order.KEY: "A100-2-10C,A40-8Q",
    }
    first, second = profile_order.list_choices(specs, CATALOG)
    del specs[profile_order.KEY]
    assert first.specs == specs
    assert "resources_A:CUSTOM_MIG_SLICE" not in second.specs


def test_all_groups_of_the_first_profile_are_replaced() -> None:
    second = {key.replace("GPU1", "GPU2"): value for key, value in A40.items()}
    second["resources_GPU2:VGPU"] = "2"
    choice = list_choices("A40-8Q,T4-4Q", **second)["T4-4Q"]
    assert choice["resources_GPU1:CUSTOM_GPU_MEMORY_MB"] == "4096"
    assert choice["resources_GPU2:CUSTOM_GPU_MEMORY_MB"] == "8192"
    assert not any("A40" in key for key in choice)


def test_a_size_of_all_models_names_each_once() -> None:
    names = list(list_choices("A40-8Q,T4-8Q,*-8Q"))
    assert names[:2] == ["A40-8Q", "T4-8Q"]
    assert len(names) == len(set(names)) > 10
    types = [CATALOG.find(name) for name in names]
    assert all(each and each.name == f"{each.gpu}-8Q" for each in types)


def test_the_validator_accepts_each_type_of_the_catalog() -> None:
    spec = extra_specs.find(profile_order.KEY)
    assert spec is not None
    types = [t for g in CATALOG.gpus() for t in CATALOG.profiles_of(g.key)]
    assert types and all(spec.accepts(f"{t.name},*-8Q") for t in types)
    assert not any(map(spec.accepts, ("", "typo", "*-8Q", "A40-8Q,")))


def test_a_flavor_without_the_list_has_no_choice() -> None:
    assert profile_order.list_choices(A40, CATALOG) == ()


@pytest.mark.parametrize(
    "value",
    [
        *("", ",", "A40-8Q,", "A40-8Q,A40-9Q", "*-8Q", "A40-8Q,*-9Q"),
        *("T4-4Q,A40-8Q", "A40-8Q,*-4C,*-8C", "A40-8Q,*"),
    ],
)
def test_other_lists_are_refused(value: str) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        list_choices(value)
    assert profile_order.KEY in str(caught.value)
