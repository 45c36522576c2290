# SPDX-License-Identifier: Apache-2.0
"""Profiles of a cloud are derived from its inventories and traits."""

import dataclasses

import pytest

from nova_accel.catalog import loader
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import lookup, offered_devices, profile_list
from tests.support.placement import clouds

TYPES = offered_devices.VgpuTypes(loader.load())


def listed(
    *devices: offered_devices.OfferedDevice,
) -> dict[str, profile_list.ListedProfile]:
    return {
        offer.terms.name: offer
        for offer in profile_list.list_profiles(devices, TYPES)
    }


def test_every_type_has_a_trait_of_its_own() -> None:
    count = sum(
        len(loader.load().profiles_of(gpu.key)) for gpu in loader.load().gpus()
    )
    assert len(TYPES.by_trait) == count


def test_free_is_what_the_scarcest_counter_allows() -> None:
    card = clouds.gpu("A40", ("8Q", "48Q"), used={"CUSTOM_GPU_MEMORY_MB": 1})
    profiles = listed(card)
    assert profiles["A40-8Q"].free == 5
    assert profiles["A40-48Q"].free == 0
    assert profiles["A40-48Q"].cards == 0 and profiles["A40-48Q"].is_offered
    assert profiles["A40-8Q"].most == 6
    assert profiles["A40-8Q"].terms.charges == {
        "VGPU": 1,
        "CUSTOM_GPU_MEMORY_MB": 8192,
    }


def test_mixed_sizes_hold_fewer() -> None:
    profiles = listed(clouds.gpu("A40", ("8Q",), layout="mixed"))
    assert (profiles["A40-8Q"].free, profiles["A40-8Q"].most) == (4, 4)


def test_free_does_not_exceed_the_certain_number() -> None:
    """A small partition may have a start that no large one can have."""
    used = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 1024}
    profiles = listed(clouds.gpu("A40", ("8Q",), layout="mixed", used=used))
    assert profiles["A40-8Q"].free == 4
    used = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 5120, "CUSTOM_MIG_SLICE": 1}
    profiles = listed(clouds.gpu("A100", ("4-20C",), layout="mig", used=used))
    assert profiles["A100-4-20C"].free == 1


def test_most_is_for_an_empty_card() -> None:
    """Totals are those of the present size, less reserved units."""
    card = clouds.gpu("A40", ("8Q",))
    capacities = {
        n: dataclasses.replace(s, capacity=3)
        for n, s in card.capacities.items()
    }
    profiles = listed(dataclasses.replace(card, capacities=capacities))
    assert (profiles["A40-8Q"].most, profiles["A40-1Q"].most) == (6, 32)


def test_a_full_card_still_lists_what_it_makes() -> None:
    profiles = listed(clouds.gpu("A40", (), used={"VGPU": 6}))
    assert profiles["A40-8Q"].free == 0 and not profiles["A40-8Q"].is_offered
    assert profiles["A40-8Q"].hosts == ("node1",)
    assert "A100-1-5C" not in profiles


def test_an_unavailable_card_has_nothing_free() -> None:
    for trait in names.UNAVAILABLE_TRAITS - {names.MISSING_TRAIT}:
        profile = listed(clouds.gpu("A40", ("8Q",), trait))["A40-8Q"]
        assert (profile.free, profile.is_offered) == (0, False)


def test_a_missing_card_is_not_listed() -> None:
    assert not listed(clouds.gpu("A40", ("8Q",), names.MISSING_TRAIT))


def test_cards_and_hosts_are_summed() -> None:
    profile = listed(
        clouds.gpu("A40", ("8Q",)),
        clouds.gpu("A40", ("8Q",), at="node1/0000:42:00.0"),
        clouds.gpu("A40", (), at="node2/0000:41:00.0"),
    )["A40-8Q"]
    assert (profile.free, profile.cards, profile.cards_in_all) == (12, 2, 3)
    assert profile.hosts == ("node1", "node2")
    assert profile.models == ("NVIDIA A40",)


def test_slices_are_charged_of_a_card_in_mig_mode() -> None:
    profiles = listed(clouds.gpu("A100", ("2-10C",), layout="mig"))
    assert profiles["A100-2-10C"].terms.charges["CUSTOM_MIG_SLICE"] == 2
    assert profiles["A100-2-10C"].most == 3
    assert "A100-8C" not in profiles


@pytest.mark.parametrize(
    ("trait", "charges"),
    [
        ("CUSTOM_VGPU_NVIDIA_X90_8Q", {"CUSTOM_GPU_MEMORY_MB": 8192}),
        (
            "CUSTOM_VGPU_NVIDIA_X90_2_10C",
            {"CUSTOM_GPU_MEMORY_MB": 10240, "CUSTOM_MIG_SLICE": 2},
        ),
        (
            "CUSTOM_GPU_VF_INTEL_56C0_3584M",
            {"CUSTOM_GPU_MEMORY_MB": 3584},
        ),
        ("CUSTOM_VGPU_INTEL_I915_GVTG_V5_4", {}),
    ],
)
def test_charges_are_guessed_from_names(
    trait: str, charges: dict[str, int]
) -> None:
    assert offered_devices.guess_charges(trait) == charges


def test_an_unlisted_series_has_the_terms_of_its_size() -> None:
    vgpu_type = TYPES.find(
        "CUSTOM_VGPU_NVIDIA_RTX_PRO_6000_BLACKWELL_DC_2_12A"
    )
    assert vgpu_type is not None
    assert vgpu_type.name == "RTX Pro 6000 Blackwell DC-2-12A"
    assert vgpu_type.framebuffer_mb == 12288 and vgpu_type.per_instance > 1


def test_unknown_charges_are_listed() -> None:
    card = clouds.device(
        {"VGPU": 3, "CUSTOM_GPU_MEMORY_MB": 1000},
        traits=("CUSTOM_VGPU_INTEL_I915_GVTG_V5_4",),
    )
    (profile,) = listed(card).values()
    assert profile.terms.unknown == {"CUSTOM_GPU_MEMORY_MB"}
    assert profile.free == 3


def test_regions_offer_functions_and_interfaces() -> None:
    free = clouds.region("0AFE", number=0)
    used = clouds.region("0AFE", number=1, is_free=False)
    profiles = listed(free, used)
    region = profiles["region"]
    assert (region.free, region.cards_in_all) == (1, 2)
    assert region.terms.required == {names.REGION_TRAIT}
    assert profiles["0afe"].free == 1 and profiles["0afe"].cards_in_all == 2
    assert profiles["1face"].terms.required == {
        "CUSTOM_FPGA_INTERFACE_1FACE",
        names.PROGRAMMABLE_TRAIT,
    }


def test_a_whole_function_is_named_as_its_driver_names_it() -> None:
    device = clouds.device(
        {"CUSTOM_QAT_VF": 16},
        "INTEL_QAT_C62X",
        traits=("CUSTOM_ACCELERATOR_DEVICE_8086_37C8",),
    )
    profile = listed(device)["8086:37c8-VF"]
    assert profile.models == ("INTEL QAT C62X",)
    assert profile.terms.required == {"CUSTOM_ACCELERATOR_DEVICE_8086_37C8"}
    query = lookup.ProfileQuery(profile="CUSTOM_ACCELERATOR_VF_INTEL_37C8")
    request = lookup.find_profile(
        query, offered_devices.Cloud(devices=(device,)), TYPES
    )
    group = flavors.RequestGroup(
        suffix="_A", resources=request.resources, required=request.required
    )
    assert lookup.describe_group(group, TYPES) == "8086:37c8-VF"


def test_other_classes_are_one_row_for_each_model() -> None:
    profiles = profile_list.list_profiles(
        [
            clouds.device({"CUSTOM_QAT_VF": 16}, "INTEL_QAT_C62X"),
            clouds.device(
                {"CUSTOM_QAT_VF": 16},
                "INTEL_QAT_4XXX",
                at="node1/0000:6b:00.0",
            ),
        ],
        TYPES,
    )
    assert [o.models for o in profiles] == [
        ("INTEL QAT 4XXX",),
        ("INTEL QAT C62X",),
    ]
    assert {o.terms.name for o in profiles} == {"CUSTOM_QAT_VF"}
