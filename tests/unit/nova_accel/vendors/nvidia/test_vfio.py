# SPDX-License-Identifier: Apache-2.0
"""Proves how NVIDIA cards with typed VFs are described and arranged."""

import dataclasses
import errno
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.geometry import device_capacity
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import actions, names, providers
from nova_accel.vendors.nvidia import vfio_driver
from tests.hosts import build, look

USED = "0000:3d:00.0"
EMPTY = "0000:3e:00.0"
WITHOUT = "0000:d8:00.0"
BROKEN = "0000:21:00.0"
MIG = "0000:17:00.0"
STEM = "RTX Pro 6000 Blackwell DC"


def l40s(root: pathlib.Path, *rules: str) -> model.HostState:
    return look.read(look.make("l40s-vendor-vfio", root), rules)


def test_a_card_without_vfs_gets_them_when_the_service_starts(
    tmp_path: pathlib.Path,
) -> None:
    state = l40s(tmp_path, '{"num_vfs": 32}')
    assert "when the service starts" in look.reasons(state, WITHOUT)


@pytest.mark.parametrize("use", ["passthrough", "off", "vf"])
def test_another_use_causes_no_problem(
    tmp_path: pathlib.Path, use: str
) -> None:
    state = l40s(tmp_path, json.dumps({"vendor_id": "10de", "use": use}))
    assert not [d for d in state.devices if d.technology == "vendor-vfio"]
    assert "makes no vGPU" not in look.reasons(state, WITHOUT)


def test_a_lone_full_card_still_names_its_types(
    tmp_path: pathlib.Path,
) -> None:
    description = build.load("l40s-vendor-vfio")
    (lone,) = (f for f in description["functions"] if f["address"] == USED)
    lone["vfs"]["vgpus"]["creatable"] = []
    root = build.build({"functions": [lone]}, tmp_path)
    state = look.read(root)
    card = look.device(state, USED)
    # No source on this host names 1155.
    assert [p.profile for p in card.partitions] == ["type-1155"]
    reasons = look.reasons(state, f"{USED} type-1155")
    assert "counted as VGPU only; NVML" in reasons
    # It can be removed, and created again if that fails.
    unnamed = look.profile(card, "type-1155")
    assert (unnamed.available, unnamed.charges) == (0, {"VGPU": 1})
    assert unnamed.handles["0000:3d:00.4"] == "1155"
    assert card.model == "L40S"
    assert look.profile(card, "L40S-24Q").available == 0
    # NVML names it.
    nvml = nvml_gpus.NvmlGpu(
        address=USED,
        types=(
            nvml_gpus.NvmlVgpuType(
                name="NVIDIA L40S-24Q",
                type_id="1155",
                framebuffer_mb=24576,
                max_instances=2,
            ),
        ),
    )
    card = look.device(look.read(root, gpus=[nvml]), USED)
    assert [p.profile for p in card.partitions] == ["L40S-24Q"]
    assert device_capacity.free_counters(card)["CUSTOM_GPU_MEMORY_MB"] == 24576


def test_listed_type_names_are_cached(tmp_path: pathlib.Path) -> None:
    description = build.load("l40s-vendor-vfio")
    (lone,) = (f for f in description["functions"] if f["address"] == USED)
    lone["vfs"]["vgpus"]["creatable"] = []
    later = {"functions": [lone], "modules": description["modules"]}
    driver = vfio_driver.NvidiaVfioDriver()

    def profiles_of(tree: pathlib.Path) -> list[str]:
        host = host_reader.HostReader(tree)
        items = driver.describe(host, policy.DeviceRules(), frozenset())
        (card,) = (
            item
            for item in items
            if isinstance(item, model.Device) and item.address == USED
        )
        return [p.profile for p in card.partitions]

    full = look.make("l40s-vendor-vfio", tmp_path / "1")
    assert profiles_of(full) == ["L40S-24Q"]
    assert profiles_of(build.build(later, tmp_path / "2")) == ["L40S-24Q"]
    # Another release of the driver may have given the id to another type.
    later["modules"] = {"nvidia": "580.65.05"}
    assert profiles_of(build.build(later, tmp_path / "3")) == ["type-1155"]


def test_an_unknown_card_is_offered_as_its_driver_lists_it(
    tmp_path: pathlib.Path,
) -> None:
    description = build.load("l40s-vendor-vfio")
    (lone,) = (f for f in description["functions"] if f["address"] == EMPTY)
    lone["id"] = "10de:9999"
    vgpus = lone["vfs"]["vgpus"]
    vgpus["creatable"] = [[7, "NVIDIA Z90-8Q"], [9, "NVIDIA Z90-64Q"]]
    empty = look.read(build.build({"functions": [lone]}, tmp_path / "empty"))
    card = look.device(empty, EMPTY)
    assert card.counters == {"VGPU": 7, "CUSTOM_GPU_MEMORY_MB": 65536}
    assert {p.name: p.available for p in card.profiles} == {
        "Z90-8Q": 7,
        "Z90-64Q": 1,
    }
    # The framebuffer is unknown; existing and creatable vGPUs must fit.
    vgpus["creatable"] = [[7, "NVIDIA Z90-8Q"]]
    vgpus["current"] = {"0": 7, "1": 7}
    used = look.read(build.build({"functions": [lone]}, tmp_path / "used"))
    card = look.device(used, EMPTY)
    assert look.profile(card, "Z90-8Q").available == 5


# -- what is broken -------------------------------------------------------


def test_an_unreadable_vf_is_not_assigned(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("nvidia-broken", tmp_path))
    card = look.device(state, BROKEN)
    root = providers.ProviderRoot(
        name="n", uuid="5a1ab1e5-0000-4000-8000-00000000000f"
    )
    tree = tree_builder.build_tree(root, state, policy.DeviceRules())
    (node,) = (n for n in tree.nodes if n.name.endswith("0000_21_00_0"))
    assert "0000:21:00.4" not in node.slots[names.GPU_CLASS]
    assert "0000:21:00.4" in card.slots
    assert node.inventories[names.GPU_CLASS].reserved == 4


def test_a_vf_without_its_link_is_reported(tmp_path: pathlib.Path) -> None:
    description = build.load("l40s-vendor-vfio")
    lost, place = "0000:3e:00.4", "bus/pci/devices"
    description["faults"] = [
        {"path": f"{place}/{lost}/physfn", "is": {"fault": "missing"}},
        {"path": f"{place}/{EMPTY}/virtfn0", "is": {"fault": "missing"}},
    ]
    state = look.read(build.build(description, tmp_path))
    assert "is a VF" in look.reasons(state, lost)
    assert state.device(lost) is None
    assert len(look.device(state, EMPTY).slots) == 6


def test_a_failure_of_all_vfs_is_one_problem(tmp_path: pathlib.Path) -> None:
    root = look.make("l40s-vendor-vfio", tmp_path)
    reader = host_reader.HostReader(source=Refusing(root))
    state = scan.read(reader, look.DRIVERS, policy.DeviceRules())
    reason = look.reasons(state, EMPTY)
    assert "7 of its VFs (0000:3e:00.4 and on)" in reason
    assert "NVIDIA's driver failed" in reason
    card = look.device(state, EMPTY)
    assert len(card.slots) == 7
    assert not any(p.available for p in card.profiles)


class Refusing(fs.DiskSource):
    """A host whose driver fails: EINVAL is its resource manager's."""

    def content(self, path: str) -> bytes:
        if path.endswith("creatable_vgpu_types"):
            raise OSError(errno.EINVAL, "failed")
        return super().content(path)


# -- MIG and sizes --------------------------------------------------------


def test_vgpus_share_instances(tmp_path: pathlib.Path) -> None:
    root = look.make("rtxpro6000-vendor-vfio", tmp_path)
    card = look.device(look.read(root), MIG)
    assert {(i.kind, i.handle) for i in card.geometry.instances} == {
        ("1g.24gb", "5"),
        ("2g.48gb", "3"),
        ("1g.24gb", "an empty 1g.24gb"),
    }
    assert {p.handle: p.instance for p in card.partitions} == {
        "0000:17:00.4": "5",
        "0000:17:00.5": "3",
    }


def test_an_unnamed_vgpu_does_not_change_the_mode(
    tmp_path: pathlib.Path,
) -> None:
    description = build.load("rtxpro6000-vendor-vfio")
    (card,) = (f for f in description["functions"] if f["address"] == MIG)
    card["vfs"]["vgpus"]["current"]["0"] = 9999
    state = look.read(build.build(description, tmp_path))
    device = look.device(state, MIG)
    assert device.geometry.layout is model.Layout.MIG
    assert look.profile(device, f"{STEM}-1-24Q").available == 1


# `nvidia-smi mig -lgipp` of an RTX PRO 6000 Blackwell Server Edition.
BLACKWELL_KINDS = tuple(
    model.InstanceKind(
        name=name, size=size, slices=slices, starts=starts, limit=len(starts)
    )
    for name, slices, size, starts in (
        ("1g.24gb", 1, 3, (0, 3, 6, 9)),
        ("2g.48gb", 2, 6, (0, 6)),
        ("4g.96gb", 4, 12, (0,)),
    )
)


def empty_blackwell(
    root: pathlib.Path, nvml: nvml_gpus.NvmlGpu
) -> model.Device:
    """Read the card in MIG mode without vGPUs and instances."""
    description = build.load("rtxpro6000-vendor-vfio")
    (card,) = (f for f in description["functions"] if f["address"] == MIG)
    card["vfs"]["vgpus"] = {"creatable": []}
    state = look.read(
        build.build(description, root),
        [f'{{"address": "{MIG}", "mig_instances": "dynamic"}}'],
        gpus=[nvml],
    )
    return look.device(state, MIG)


def blackwell_types() -> tuple[nvml_gpus.NvmlVgpuType, ...]:
    return tuple(
        nvml_gpus.NvmlVgpuType(
            name=f"NVIDIA {STEM}-{shape}Q",
            type_id=str(1600 + number),
            framebuffer_mb=int(shape.partition("-")[2]) * 1024,
            max_instances=limit,
            instance=kind,
        )
        for number, (shape, limit, kind) in enumerate(
            (
                ("1-24", 4, "1g.24gb"),
                ("2-48", 2, "2g.48gb"),
                ("4-96", 1, "4g.96gb"),
            )
        )
    )


def test_places_of_instances_are_in_the_units_of_nvml(
    tmp_path: pathlib.Path,
) -> None:
    nvml = nvml_gpus.NvmlGpu(
        address=MIG,
        is_mig=True,
        types=blackwell_types(),
        kinds=BLACKWELL_KINDS,
    )
    card = empty_blackwell(tmp_path, nvml)
    remaining = device_capacity.remaining(card)
    shapes = ("1-24Q", "2-48Q", "4-96Q")
    assert [remaining[f"{STEM}-{shape}"] for shape in shapes] == [4, 2, 1]
    name = f"{STEM}-2-48Q"
    first = device_capacity.choose_place(card, name)
    assert first is not None
    choice = device_capacity.choose_place(
        device_capacity.add_partition(card, name, first), name
    )
    assert choice is not None
    assert {first.instance_start, choice.instance_start} == {0, 6}


def test_places_are_known_in_mixed_mode(tmp_path: pathlib.Path) -> None:
    root = look.make("l40s-vendor-vfio", tmp_path)
    nvml = nvml_gpus.NvmlGpu(address=USED, is_mig=False, is_mixed=True)
    card = look.device(look.read(root, gpus=[nvml]), USED)
    assert card.geometry.layout is model.Layout.MIXED
    assert card.partitions[0].start == 0
    choice = device_capacity.choose_place(card, "L40S-24Q")
    assert choice is not None
    assert choice.start == 24


def test_without_nvml_vgpus_of_several_sizes_show_the_mode(
    tmp_path: pathlib.Path,
) -> None:
    """Read as equal-size, the card would offer one of its sizes alone."""
    types = [[1, "NVIDIA L40S-8Q"], [2, "NVIDIA L40S-16Q"]]

    def layout(vgpus: dict[str, int]) -> model.Layout:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        build.build(
            one_card("26b9", {"creatable": types, "current": vgpus}), root
        )
        card = look.device(look.read(root), EMPTY)
        assert len(card.partitions) == len(vgpus)
        return card.geometry.layout

    assert layout({"0": 1, "1": 2}) is model.Layout.MIXED
    assert layout({"0": 1, "1": 1}) is not model.Layout.MIXED
    assert layout({"0": 1}) is not model.Layout.MIXED


def one_card(gpu: str, vgpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host with one card.

    :param gpu: its product id.
    :param vgpus: the types of its VFs, and what they hold.
    """
    function = {
        "address": EMPTY,
        "id": f"10de:{gpu}",
        "class": "030200",
        "driver": "nvidia",
        "group": 1,
        "vfs": {
            "total": 32,
            "count": 32,
            "offset": 4,
            "driver": "nvidia",
            "first_group": 10,
            "vgpus": vgpus,
        },
    }
    return {"functions": [function]}


def test_places_of_nvml_come_before_those_of_the_catalog(
    tmp_path: pathlib.Path,
) -> None:
    """The catalog has 16 places of an H200X-7C, NVIDIA publishes 20."""
    types = {"creatable": [[1, "NVIDIA H200X-7C"]]}
    root = build.build(one_card("2335", types), tmp_path)
    without_types = nvml_gpus.NvmlGpu(
        address=EMPTY, is_mig=False, is_mixed=True
    )
    card = look.device(look.read(root, gpus=[without_types]), EMPTY)
    assert look.profile(card, "H200X-7C").available == 16
    nvml_type = nvml_gpus.NvmlVgpuType(
        name="NVIDIA H200X-7C",
        type_id="1",
        framebuffer_mb=7168,
        max_instances=20,
        span=7,
        starts=tuple(range(0, 140, 7)),
    )
    with_types = dataclasses.replace(without_types, types=(nvml_type,))
    card = look.device(look.read(root, gpus=[with_types]), EMPTY)
    assert card.geometry.region == 140
    assert look.profile(card, "H200X-7C").available == 20


# -- plans ----------------------------------------------------------------

CLAIM = model.Claim(
    consumer="c",
    provider="p",
    device=EMPTY,
    profile="L40S-24Q",
    slot="0000:3e:00.5",
    parent="0000:3e:00.5",
    handle="0000:3e:00.5",
    technology="vendor-vfio",
    type_id="1155",
    start=24,
    vgpu_params="enable_uvm=1",
)


def test_a_claims_vf_is_typed_placed_and_freed() -> None:
    driver = vfio_driver.NvidiaVfioDriver()
    typed = actions.SetVgpuType(function=CLAIM.handle, type_id="1155")
    assert driver.plan_prepare(CLAIM) == (
        typed,
        actions.SetVgpuPlacementId(function=CLAIM.handle, start=24),
        actions.SetVgpuParams(target=CLAIM.handle, params="enable_uvm=1"),
    )
    assert driver.plan_release(CLAIM) == (typed.undo(),)


def arranged(
    root: pathlib.Path, line: str, *gpus: nvml_gpus.NvmlGpu
) -> tuple[actions.Action, ...]:
    host = host_reader.HostReader(
        look.make("l40s-vendor-vfio", root),
        gpus={gpu.address: gpu for gpu in gpus},
    )
    rules = policy.parse_rules([line])
    return tuple(vfio_driver.NvidiaVfioDriver().plan_arrange(host, rules))


def test_vfs_are_enabled_by_the_vendors_tool(tmp_path: pathlib.Path) -> None:
    enabled = actions.SetVfCount(
        function=WITHOUT, count=32, tool="sriov-manage"
    )
    assert arranged(tmp_path / "a", '{"num_vfs": 4}') == (enabled,)
    assert arranged(tmp_path / "b", '{"num_vfs": 0}') == ()
    assert arranged(tmp_path / "c", "{}") == ()
    off = '{"num_vfs": 4, "address": "0000:3*"}'
    assert arranged(tmp_path / "d", off) == ()


def test_mixed_sizes_are_set_after_the_vfs(tmp_path: pathlib.Path) -> None:
    line = '{"num_vfs": 32, "sizes": "mixed"}'
    gpus = [
        nvml_gpus.NvmlGpu(address=address, is_mig=False, is_mixed=is_mixed)
        for address, is_mixed in (
            (USED, False),  # holds a vGPU
            (EMPTY, True),  # is in that mode already
            (WITHOUT, True),  # and loses it when its VFs are enabled
        )
    ]
    assert arranged(tmp_path, line, *gpus) == (
        actions.SetVfCount(function=WITHOUT, count=32, tool="sriov-manage"),
        actions.SetMixedSizes(gpu=WITHOUT, is_mixed=True),
    )
