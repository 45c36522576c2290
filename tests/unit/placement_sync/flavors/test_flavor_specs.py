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
from placement_sync.flavors import flavor_specs

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

wants = st.builds(
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
wishes = st.builds(
    flavor_specs.FlavorRequest, devices=wants, settings=settings_
)


@given(foreign, wishes)
def test_what_is_written_is_read_again(
    old: dict[str, str], wish: flavor_specs.FlavorRequest
) -> None:
    specs = flavor_specs.plan(old, wish).specs
    asked = flavor_specs.read(specs)
    assert wish.devices is not None
    ((word, found),) = flavor_specs.list_requests(asked)
    assert found == wish.devices
    assert word == flavor_specs.group_name(wish.devices)
    assert asked.policy == flavors.parse_placement_policy(
        {f"accelerator:{k}": v for k, v in wish.settings.items()}
    )


@given(foreign, wishes)
def test_the_filter_reads_the_same_groups(
    old: dict[str, str], wish: flavor_specs.FlavorRequest
) -> None:
    specs = dict(flavor_specs.plan(old, wish).specs)
    asked = flavor_specs.read(specs)
    wanted = request.parse_request(specs)
    assert wanted.groups == asked.groups
    assert wanted.policy == asked.policy


@given(foreign, wishes, wishes)
def test_the_last_wish_counts_and_others_specs_stay(
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


@given(foreign, wishes)
def test_a_change_is_what_differs(
    old: dict[str, str], wish: flavor_specs.FlavorRequest
) -> None:
    change = flavor_specs.plan(old, wish)
    kept = {k: v for k, v in old.items() if k not in change.removed}
    applied = {**kept, **change.added}
    assert applied == change.specs


def test_a_profile_is_written_as_the_guide_says() -> None:
    wish = flavor_specs.FlavorRequest(
        devices=A40, settings={"numa_policy": "required"}
    )
    assert flavor_specs.plan({}, wish).specs == {
        "resources_GPU1:VGPU": "1",
        "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
        "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
        "accelerator:numa_policy": "required",
    }


def test_nova_wants_a_policy_for_two_groups() -> None:
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
    theirs = {**specs, "group_policy": "isolate"}
    kept = flavor_specs.plan(
        theirs, flavor_specs.FlavorRequest(devices=two)
    ).specs
    assert kept["group_policy"] == "isolate"
    assert flavor_specs.read(kept).is_isolated


def test_a_named_group_stands_beside_the_others() -> None:
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
    wish = flavor_specs.FlavorRequest(settings={"packing": "pack"})
    change = flavor_specs.plan(specs, wish)
    assert change.added == {"accelerator:packing": "pack"}
    assert not change.removed


def test_what_nova_itself_makes_of_vgpus_is_replaced() -> None:
    old = {"resources:VGPU": "1", "trait:CUSTOM_VGPU_NVIDIA_T4_4Q": "required"}
    change = flavor_specs.plan(old, flavor_specs.FlavorRequest(devices=A40))
    assert set(change.removed) == set(old)
    (group,) = flavor_specs.read({**old, **FOREIGN}).groups
    assert group.resources == {"VGPU": 1}


@pytest.mark.parametrize("name", ["", "GPU1", "a b", "x" * 33, "Ä"])
def test_a_groups_name_must_be_one(name: str) -> None:
    with pytest.raises(errors.MalformedError):
        flavor_specs.check_group(name)


def test_pins_are_found_in_any_group() -> None:
    pin = names.pin_trait("node1.example.org", "0000:41:00.0")
    assert flavor_specs.list_pins({f"trait_X:{pin}": "required"}) == {pin}
    assert flavor_specs.list_pins({f"resources_X:{'VGPU'}": "1"}) == set()
