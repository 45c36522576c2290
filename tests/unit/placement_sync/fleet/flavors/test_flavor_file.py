# SPDX-License-Identifier: Apache-2.0
"""Flavors of files in the formats of several commands."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from placement_sync.fleet.flavors import flavor_file, flavor_specs, flavor_text

VGPU = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}


def parse(content: Any) -> tuple[flavor_file.FlavorEntry, ...]:
    return flavor_file.parse(json.dumps(content))


def test_a_list_of_openstackclient() -> None:
    (entry,) = parse(
        [
            {
                "ID": "1",
                "Name": "gpu.small",
                "RAM": 8192,
                "Disk": 20,
                "Ephemeral": 0,
                "VCPUs": 4,
                "Is Public": False,
                "Swap": 0,
                "Properties": VGPU,
            }
        ]
    )
    assert entry == flavor_file.FlavorEntry(
        name="gpu.small",
        specs=VGPU,
        vcpus=4,
        ram_mb=8192,
        disk_gb=20,
        is_public=False,
    )


def test_the_listing_of_novas_api() -> None:
    body = {
        "name": "gpu.small",
        "vcpus": 4,
        "ram": 8192,
        "disk": 20,
        "swap": 512,
        "OS-FLV-EXT-DATA:ephemeral": 0,
        "os-flavor-access:is_public": True,
        "extra_specs": VGPU,
    }
    (entry,) = parse({"flavors": [body]})
    assert (entry.specs, entry.is_public) == (VGPU, True)
    assert entry.has_other_disks
    assert parse({"flavor": body}) == (entry,)


def test_profiles_have_no_name_and_no_sizes() -> None:
    expected = (flavor_file.FlavorEntry(profile="A40-8Q"),)
    assert parse([{"Profile": "A40-8Q", "Free": 3}]) == expected
    listed = {"name": "A40-8Q", "charges": {"VGPU": 1}}
    assert parse({"profiles": [listed]}) == expected


SUFFIXES = st.sampled_from(("", "_GPU1", "_FPGA2"))


@st.composite
def specs(draw: st.DrawFn) -> dict[str, str]:
    """Draw the extra specs of a flavor with up to three groups."""
    drawn = {}
    for suffix in draw(st.sets(SUFFIXES)):
        drawn[f"resources{suffix}:VGPU"] = str(draw(st.integers(1, 3)))
        trait = f"trait{suffix}:CUSTOM_VGPU_NVIDIA_A40_8Q"
        drawn[trait] = draw(st.sampled_from(("required", "forbidden")))
    if draw(st.booleans()):
        drawn["accelerator:packing"] = "spread"
        drawn["accelerator:rom"] = draw(st.sampled_from(("on", "off")))
    if len(drawn) > 2:
        drawn["group_policy"] = "none"
    return drawn


@given(specs())
def test_what_flavor_show_prints_is_imported_unchanged(
    extra_specs: dict[str, str],
) -> None:
    report = flavor_text.FlavorReport(
        flavor={"id": "1", "name": "gpu.small"},
        contents=flavor_specs.read(extra_specs),
        specs=extra_specs,
        refusal="",
        room=0,
        carriers={},
    )
    (entry,) = parse(flavor_text.as_dict(report))
    assert entry.name == "gpu.small"
    change = flavor_file.plan(extra_specs, entry.specs)
    assert (change.added, change.removed) == ({}, ())


def test_accelerators_are_replaced_and_other_extra_specs_stay() -> None:
    old = {
        "hw:cpu_policy": "shared",
        "resources_X:FPGA": "1",
        "trait_X:CUSTOM_FAST": "required",
        "accelerator:packing": "pack",
    }
    change = flavor_file.plan(old, {**VGPU, "hw:mem_page_size": "large"})
    assert change.added == {**VGPU, "hw:mem_page_size": "large"}
    assert change.removed == (
        "accelerator:packing",
        "resources_X:FPGA",
        "trait_X:CUSTOM_FAST",
    )


@pytest.mark.parametrize(
    "content",
    [
        [{"flavor": "x"}],
        [{"flavor": ["name"]}],
        [{"flavor": 5}],
        [{"name": {"a": 1}}],
        [{"name": "a", "properties": {"a": {"b": 1}}}],
        [{"name": "a", "properties": {"a": None}}],
        [{"profile": {}}],
        {"groups": 5, "flavor": {"name": "a"}},
        {"groups": [5], "settings": [], "flavor": {"name": "a"}},
        {"flavors": {"flavors": 1}},
    ],
)
def test_another_shape_is_refused(content: Any) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        parse(content)
    assert len(str(caught.value)) < 400


def test_many_names_take_little_time() -> None:
    content = [{"name": f"flavor{n}"} for n in range(50_000)]
    began = time.thread_time()
    assert len(parse(content)) == len(content)
    assert time.thread_time() - began < 5.0
