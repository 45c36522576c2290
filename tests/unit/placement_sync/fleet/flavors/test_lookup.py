# SPDX-License-Identifier: Apache-2.0
"""Profiles and models are looked up by any of their names."""

import pytest

from nova_accel.catalog import loader
from nova_accel.model import names
from placement_sync.fleet.flavors import flavor_specs, lookup, offered_devices
from tests.support.placement import clouds

TYPES = offered_devices.VgpuTypes(loader.load())
CLOUD = offered_devices.Cloud(
    devices=(
        clouds.gpu("A40", ("8Q",)),
        clouds.gpu("A100", ("1-5C",), layout="mig", at="node2/0000:41:00.0"),
        clouds.device(
            {"CUSTOM_MDEV": 4},
            traits=("CUSTOM_MDEV_MTTY_1", "CUSTOM_MDEV_MTTY_2"),
            at="node3/mtty",
        ),
        clouds.region("d8424dc4-a4a3-c413-f89e-433683f9040b"),
        clouds.device({"CUSTOM_QAT_VF": 16}, "INTEL_QAT_C62X"),
        clouds.device(
            {"PGPU": 1}, "NVIDIA_A10", ("CUSTOM_GPU_PCI_10DE_2236",)
        ),
        clouds.device(
            {"VGPU": 3, "CUSTOM_GPU_MEMORY_MB": 1000},
            traits=("CUSTOM_VGPU_INTEL_I915_GVTG_V5_4",),
        ),
    )
)
EIGHT = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}


def find(profile: str, **options: object) -> tuple[dict[str, int], set[str]]:
    is_forced = bool(options.pop("is_forced", False))
    query = lookup.ProfileQuery(profile=profile, **options)  # type: ignore[arg-type]
    request = lookup.find_profile(query, CLOUD, TYPES, is_forced)
    return dict(request.resources), set(request.required)


@pytest.mark.parametrize(
    "name",
    ["A40-8Q", "a40-8q", "GRID A40-8Q", "NVIDIA A40-8Q", "A40_8Q",
     "CUSTOM_VGPU_NVIDIA_A40_8Q"],
)  # fmt: skip
def test_a_type_has_many_spellings(name: str) -> None:
    assert find(name) == (EIGHT, {"CUSTOM_VGPU_NVIDIA_A40_8Q"})


@pytest.mark.parametrize(
    ("name", "resources", "trait"),
    [
        (
            "A100-1-5C",
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 5120, "CUSTOM_MIG_SLICE": 1},
            "CUSTOM_VGPU_NVIDIA_A100_1_5C",
        ),
        ("mtty-2", {"CUSTOM_MDEV": 1}, "CUSTOM_MDEV_MTTY_2"),
        ("region", {"FPGA": 1}, names.REGION_TRAIT),
        ("10de:2236", {"PGPU": 1}, "CUSTOM_GPU_PCI_10DE_2236"),
        (
            "D8424DC4-A4A3-C413-F89E-433683F9040B",
            {"FPGA": 1},
            "CUSTOM_FPGA_FUNCTION_D8424DC4A4A3C413F89E433683F9040B",
        ),
        ("PCI_10DE_2236", {"PGPU": 1}, "CUSTOM_GPU_PCI_10DE_2236"),
        # No card of this cloud, but in the catalog.
        (
            "L40S-48Q",
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 49152},
            "CUSTOM_VGPU_NVIDIA_L40S_48Q",
        ),
    ],
)
def test_profiles_of_all_kinds_are_found(
    name: str, resources: dict[str, int], trait: str
) -> None:
    assert find(name) == (resources, {trait})


def test_a_profile_of_a_full_card_is_found() -> None:
    assert find("A40-48Q")[1] == {"CUSTOM_VGPU_NVIDIA_A40_48Q"}


def test_classes_are_narrowed_by_model() -> None:
    assert find("CUSTOM_QAT_VF") == ({"CUSTOM_QAT_VF": 1}, set())
    a10 = {f"{names.MODEL_PREFIX}NVIDIA_A10"}
    for model in ("A10", "nvidia a10", "NVIDIA_A10"):
        assert find("PGPU", model=model) == ({"PGPU": 1}, a10)
    assert find("PGPU", traits=("CUSTOM_RACK_7",))[1] == {"CUSTOM_RACK_7"}


def test_a_bitstream_goes_into_an_interface() -> None:
    resources, required = find("1face", bitstream="image")
    assert resources == {"FPGA": 1}
    assert required == {
        "CUSTOM_FPGA_INTERFACE_1FACE",
        names.PROGRAMMABLE_TRAIT,
    }
    assert find("FPGA", bitstream="image")[1] == {names.PROGRAMMABLE_TRAIT}


GRACE = clouds.device(
    {"PGPU": 1},
    "NVIDIA_GB200",
    ("CUSTOM_GPU_PCI_10DE_2941",),
    at="node4/0008:01:00.0",
)


@pytest.mark.parametrize(
    ("query", "settings", "is_mixed", "nodes"),
    [
        ({"profile": "10de:2941"}, {}, True, "8"),
        ({"profile": "PGPU", "model": "GB200"}, {}, True, "8"),
        ({"profile": "PGPU"}, {}, False, "8"),
        ({"profile": "PGPU"}, {}, True, None),
        ({"profile": "10de:2236"}, {}, True, None),
        ({"profile": "10de:2941"}, {"memory_nodes": "2"}, True, "2"),
        ({"profile": "10de:2941"}, {"memory_nodes": "0"}, True, "0"),
    ],
)
def test_gpus_with_coherent_memory_get_nodes(
    query: dict[str, str],
    settings: dict[str, str],
    is_mixed: bool,
    nodes: str | None,
) -> None:
    devices = (GRACE, *CLOUD.devices) if is_mixed else (GRACE,)
    cloud = offered_devices.Cloud(devices=devices)
    request = lookup.add_memory_nodes(
        flavor_specs.FlavorRequest(
            devices=lookup.find_profile(
                lookup.ProfileQuery(**query),  # type: ignore[arg-type]
                cloud,
                TYPES,
            ),
            settings=settings,
        ),
        cloud,
    )
    specs = flavor_specs.plan({}, request).specs
    assert specs.get("accelerator:memory_nodes") == nodes


def test_a_profile_that_no_host_has_yet_gets_nodes() -> None:
    query = lookup.ProfileQuery(profile="CUSTOM_GPU_PCI_10DE_2342")
    devices = lookup.find_profile(query, CLOUD, TYPES, is_forced=True)
    request = lookup.add_memory_nodes(
        flavor_specs.FlavorRequest(devices=devices), CLOUD
    )
    assert request.settings == {"memory_nodes": "8"}


def test_unknown_charges_must_be_given() -> None:
    gvtg = "I915_GVTG_V5_4"
    with pytest.raises(
        lookup.NotOfferedError, match="--charge CUSTOM_GPU_MEM"
    ):
        find(gvtg)
    charges = {"CUSTOM_GPU_MEMORY_MB": 128}
    assert find(gvtg, charges=charges)[0] == {"VGPU": 1, **charges}


def test_an_unknown_trait_needs_force() -> None:
    trait = "CUSTOM_VGPU_NVIDIA_B300_8Q"
    with pytest.raises(lookup.NotOfferedError):
        find(trait)
    assert find(trait, is_forced=True) == (EIGHT, {trait})
    assert find("CUSTOM_FPGA_FUNCTION_0AFE", is_forced=True)[0] == {"FPGA": 1}
