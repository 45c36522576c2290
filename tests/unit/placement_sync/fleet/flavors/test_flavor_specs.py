# SPDX-License-Identifier: Apache-2.0
"""Device requests written as extra specs, and parsed again."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import request
from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import flavor_specs

A40 = flavor_specs.DeviceRequest(
    resources={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192},
    required=frozenset({"CUSTOM_VGPU_NVIDIA_A40_8Q"}),
)
FPGA = flavor_specs.DeviceRequest(
    resources={"FPGA": 1},
    required=frozenset({"CUSTOM_FPGA_INTERFACE_1FACE"}),
    bitstream="6f4d2a52-8a4e-4f0c-9d53-b3c4e5a1f001",
)
FOREIGN = {
    "hw:numa_nodes": "2",
    "resources:CUSTOM_BAREMETAL": "1",
    "resources_NET1:CUSTOM_BANDWIDTH": "1000",
    "trait_NET1:CUSTOM_PHYSNET_BLUE": "required",
    "trait:HW_CPU_X86_AVX2": "required",
    "trait:OWNER_NOVA": "required",
}

device_requests = st.builds(
    flavor_specs.DeviceRequest,
    resources=st.dictionaries(
        st.sampled_from(sorted(pci_ids.ACCELERATOR_CLASSES)),
        st.integers(1, 9),
        min_size=1,
    ),
    required=st.frozensets(
        st.sampled_from(
            [
                "CUSTOM_VGPU_NVIDIA_A40_8Q",
                "CUSTOM_RACK_7",
                names.pin_trait("node1", "0000:41:00.0"),
            ]
        )
    ),
    count=st.integers(1, 12),
)
settings_ = st.fixed_dictionaries(
    {},
    optional={
        "numa_policy": st.sampled_from([p.value for p in flavors.NumaPolicy]),
        "locality": st.sampled_from([p.value for p in flavors.Locality]),
        "packing": st.sampled_from([p.value for p in flavors.Packing]),
        "display": st.sampled_from(["on", "off"]),
    },
)
foreign = st.dictionaries(
    st.sampled_from(sorted(FOREIGN)), st.just("1"), max_size=6
)
flavor_requests = st.builds(
    flavor_specs.FlavorRequest, devices=device_requests, settings=settings_
)


@given(foreign, flavor_requests)
def test_written_requests_are_read_back(
    old: dict[str, str], flavor_request: flavor_specs.FlavorRequest
) -> None:
    specs = flavor_specs.plan(old, flavor_request).specs
    contents = flavor_specs.read(specs)
    assert flavor_request.devices is not None
    ((word, request_),) = flavor_specs.list_requests(contents)
    assert request_ == flavor_request.devices
    assert word == flavors.group_name(flavor_request.devices.resources)
    assert contents.policy == flavors.parse_selection_policy(
        {f"accelerator:{k}": v for k, v in flavor_request.settings.items()}
    )


@given(foreign, flavor_requests)
def test_the_filter_reads_the_same_groups(
    old: dict[str, str], flavor_request: flavor_specs.FlavorRequest
) -> None:
    specs = dict(flavor_specs.plan(old, flavor_request).specs)
    contents = flavor_specs.read(specs)
    parsed = request.parse_request(specs)
    assert parsed.groups == contents.groups
    assert parsed.policy == contents.policy


@given(foreign, flavor_requests, flavor_requests)
def test_the_last_request_counts_and_other_specs_remain(
    old: dict[str, str],
    first: flavor_specs.FlavorRequest,
    last: flavor_specs.FlavorRequest,
) -> None:
    once = flavor_specs.plan(old, last).specs
    then = flavor_specs.plan(flavor_specs.plan(old, first).specs, last).specs
    assert then == once
    assert flavor_specs.plan(once, last).added == {}
    assert old.items() <= once.items()
    assert flavor_specs.plan(once, flavor_specs.FlavorRequest()).specs == {
        **old,
        **({"group_policy": "none"} if _groups(old) > 1 else {}),
    }


def _groups(specs: dict[str, str]) -> int:
    return len([g for g in flavors.parse_groups(specs) if g.suffix])


@given(foreign, flavor_requests)
def test_a_change_contains_the_differences(
    old: dict[str, str], flavor_request: flavor_specs.FlavorRequest
) -> None:
    change = flavor_specs.plan(old, flavor_request)
    unchanged = {k: v for k, v in old.items() if k not in change.removed}
    applied = {**unchanged, **change.added}
    assert applied == change.specs


def test_a_profile_is_written_as_the_guide_says() -> None:
    flavor_request = flavor_specs.FlavorRequest(
        devices=A40, settings={"numa_policy": "required"}
    )
    assert flavor_specs.plan({}, flavor_request).specs == {
        "resources_GPU1:VGPU": "1",
        "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
        "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
        "accelerator:numa_policy": "required",
    }


def test_two_groups_need_a_group_policy() -> None:
    two = dataclasses.replace(A40, count=2)
    specs = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=two)
    ).specs
    assert specs["group_policy"] == "none"
    change = flavor_specs.plan(specs, flavor_specs.FlavorRequest(devices=A40))
    assert set(change.removed) == {
        "group_policy",
        "resources_GPU2:VGPU",
        "resources_GPU2:CUSTOM_GPU_MEMORY_MB",
        "trait_GPU2:CUSTOM_VGPU_NVIDIA_A40_8Q",
    }
    isolated = {**specs, "group_policy": "isolate"}
    specs_after = flavor_specs.plan(
        isolated, flavor_specs.FlavorRequest(devices=two)
    ).specs
    assert specs_after["group_policy"] == "isolate"
    assert flavor_specs.read(specs_after).is_isolated


def test_a_named_group_is_added_to_the_others() -> None:
    specs = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=A40)
    ).specs
    specs = flavor_specs.plan(
        specs, flavor_specs.FlavorRequest(devices=FPGA, group="LOAD")
    ).specs
    assert specs["accelerator:fpga_bitstream_LOAD1"] == FPGA.bitstream
    assert flavor_specs.list_requests(flavor_specs.read(specs)) == (
        ("GPU", A40),
        ("LOAD", FPGA),
    )
    gone = flavor_specs.plan(specs, flavor_specs.FlavorRequest(group="LOAD"))
    alone = flavor_specs.plan({}, flavor_specs.FlavorRequest(devices=A40))
    assert gone.specs == alone.specs


def test_settings_alone_leave_the_groups() -> None:
    specs = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=FPGA)
    ).specs
    flavor_request = flavor_specs.FlavorRequest(settings={"packing": "pack"})
    change = flavor_specs.plan(specs, flavor_request)
    assert change.added == {"accelerator:packing": "pack"}
    assert not change.removed


def test_specs_of_novas_own_vgpus_are_replaced() -> None:
    old = {"resources:VGPU": "1", "trait:CUSTOM_VGPU_NVIDIA_T4_4Q": "required"}
    change = flavor_specs.plan(old, flavor_specs.FlavorRequest(devices=A40))
    assert set(change.removed) == set(old)
    (group,) = flavor_specs.read({**old, **FOREIGN}).groups
    assert group.resources == {"VGPU": 1}


@pytest.mark.parametrize("name", ["", "GPU1", "a b", "x" * 33, "Ä"])
def test_a_malformed_group_name_is_refused(name: str) -> None:
    with pytest.raises(errors.MalformedError):
        flavor_specs.check_group(name)


def test_pins_are_found_in_any_group() -> None:
    pin = names.pin_trait("node1.example.org", "0000:41:00.0")
    assert flavor_specs.list_pins({f"trait_X:{pin}": "required"}) == {pin}
    assert flavor_specs.list_pins({f"resources_X:{'VGPU'}": "1"}) == set()


@pytest.mark.parametrize(
    "native",
    [
        {"resources:VGPU": "1"},
        {"resources:VGPU": "1", f"trait:{names.OWNER_TRAIT}": "forbidden"},
        {"resources_OLD:VGPU": "2", "trait_OLD:CUSTOM_FAST": "required"},
        {"resources_PCI:PGPU": "1", "pci_passthrough:alias": "gpu:1"},
    ],
)
@given(requested=device_requests, settings=settings_)
def test_a_removal_takes_requests_for_own_devices_only(
    native: dict[str, str],
    requested: flavor_specs.DeviceRequest,
    settings: dict[str, str],
) -> None:
    others = {**FOREIGN, **native}
    own = dataclasses.replace(
        requested, required=requested.required | A40.required
    )
    change = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=own, settings=settings)
    )
    after = flavor_specs.plan_removal({**others, **change.specs}).specs
    stock = {k: v for k, v in others.items() if names.OWNER_TRAIT not in k}
    assert {**after, flavor_specs.POLICY: ""} == {
        **stock,
        flavor_specs.POLICY: "",
    }
