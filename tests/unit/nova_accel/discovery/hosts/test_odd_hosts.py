# SPDX-License-Identifier: Apache-2.0
"""Odd hosts give problems: incomplete VFs, mdevs without a parent."""

import json
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from tests.hosts import build, look
from tests.support import strategies

T4 = "0000:3b:00.0"
A40 = "0000:41:00.0"
VF = "0000:41:00.4"
T4_TYPE = f"{T4}/mdev_supported_types/nvidia-222"
L40S_VF = "0000:3d:00.4/nvidia"
BARE = "0000:41:00.6"
GPU = "0000:61:00.0"
UUID = "0f0e6f0a-0000-4000-8000-0000000000aa"


def a_gpu(address: str, **facts: Any) -> dict[str, Any]:
    return {
        "address": address,
        "id": "10de:2236",
        "class": "030200",
        "driver": "vfio-pci",
        "group": int(address[5:7], 16),
        **facts,
    }


def all_reasons(state: model.HostState) -> str:
    return "\n".join(f"{p.where}: {p.reason}" for p in state.problems)


def spec_problem(state: model.HostState) -> str:
    (problem,) = (p for p in state.problems if "device_spec" in p.where)
    return problem.reason


def total(state: model.HostState, address: str) -> int:
    return look.device(state, address).counters["VGPU"]


# -- virtual functions ------------------------------------------------------


@pytest.mark.parametrize("count", ["40000000000", "65535"])
def test_an_impossible_vf_count_affects_one_card_only(
    tmp_path: pathlib.Path, count: str
) -> None:
    vfs = {"total": 4, "count": 2, "offset": 4}
    cards = [
        a_gpu("0000:3d:00.0", driver="nvidia", vfs=vfs),
        a_gpu("0000:3e:00.0", vfs={"total": 4, "count": 0, "offset": 4}),
        a_gpu(GPU),
    ]
    build.build({"functions": cards}, tmp_path)
    place = "bus/pci/devices/0000:3d:00.0"
    for name, text in (("offset", "4"), ("stride", "1"), ("numvfs", count)):
        build.break_path(tmp_path, f"{place}/sriov_{name}", text)
    state = look.read(tmp_path)
    assert [d.address for d in state.devices] == ["0000:3e:00.0", GPU]
    is_number = int(count) <= 0xFFFF
    assert ("no number from 0 to 65535" in all_reasons(state)) is not is_number


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("passthrough", "0000:65:00.0/numa_node", "{}"),
        ("qat", "0000:6b:00.0/qat_ras/errors_fatal", "{}"),
        ("intel-vf", "0000:9a:00.0/sriov_admin/vf1/profile/vram_quota", "{}"),
        ("t4-mdev", f"{T4_TYPE}/available_instances", "{}"),
        ("t4-mdev", f"{T4_TYPE}/description", "framebuffer={}M"),
        ("t4-mdev", f"{T4_TYPE}/description", "max_instance={}"),
        ("l40s-vendor-vfio", f"{L40S_VF}/current_vgpu_type", "{}"),
        ("l40s-vendor-vfio", f"{L40S_VF}/placement_id", "{}"),
        ("l40s-vendor-vfio", f"{L40S_VF}/creatable_vgpu_types", "{} : A"),
    ],
)
def test_a_number_of_any_length_fails_no_driver(
    tmp_path: pathlib.Path, name: str, path: str, text: str
) -> None:
    root = look.make(name, tmp_path)
    digits = "9" * 5000  # int() refuses more than 4300
    place = f"bus/pci/devices/{path}"
    build.break_path(root, place, text.format(digits))
    state = look.read(root)
    assert state.complete, all_reasons(state)


def test_a_link_to_an_impossible_slot_affects_one_function_only(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    before = look.read(root).devices
    place = root / "sys/bus/pci/devices" / VF / "physfn"
    place.unlink()
    place.symlink_to("../0000:00:3f.0")
    assert [d.address for d in look.read(root).devices] == [
        d.address for d in before
    ]


def test_a_vf_with_a_dangling_physfn_belongs_to_its_card(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    before = total(look.read(root), A40)
    place = root / "sys/bus/pci/devices" / VF / "physfn"
    place.unlink()
    place.symlink_to("../0000:99:00.0")
    state = look.read(root)
    assert total(state, A40) == before
    profile = look.profile(look.device(state, A40), "A40-1Q")
    assert VF in profile.handles


def test_vfs_without_their_card_are_a_problem(tmp_path: pathlib.Path) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    build.break_path(root, f"bus/pci/devices/{A40}", {"fault": "missing"})
    state = look.read(root)
    assert state.device(A40) is None
    assert "is gone from the bus; rescan" in look.reasons(state, VF)


def test_announced_vfs_that_are_missing_are_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    build.break_path(root, f"bus/pci/devices/{A40}/sriov_numvfs", "40\n")
    reasons = look.reasons(look.read(root), A40)
    assert "says that 40 VFs are enabled" in reasons
    assert f"sriov-manage -d {A40}" in reasons


def test_a_vf_without_types_beside_others_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    before = all_reasons(look.read(root))
    assert "without vGPU types" not in before
    build.break_path(root, f"class/mdev_bus/{BARE}", {"fault": "missing"})
    assert "without vGPU types" in look.reasons(look.read(root), BARE)


def test_a_partial_vf_count_of_nvidia_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    line = json.dumps({"address": A40, "num_vfs": 3})
    assert "asks for 3 VFs, and 16" in look.reasons(
        look.read(root, [line]), A40
    )


def test_a_card_may_have_more_vfs_than_any_known_one(
    tmp_path: pathlib.Path,
) -> None:
    vfs = {"total": 40, "count": 40, "offset": 4, "driver": "nvidia"}
    card = a_gpu("0000:01:00.0", id="10de:9999", driver="nvidia", vfs=vfs)
    made = build.build({"functions": [card]}, tmp_path / "made")
    on = [p.name for p in (made / "sys/bus/pci/devices").iterdir()]
    on.remove("0000:01:00.0")
    types = [[1, "NVIDIA X90-1Q", 1, [1024, 40]]]
    parents = [{"on": sorted(on), "prefix": "nvidia", "types": types}]
    build.build({"functions": [card], "parents": parents}, tmp_path / "host")
    assert total(look.read(tmp_path / "host"), "0000:01:00.0") == 40


def test_without_an_iommu_it_is_the_only_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("l40s-vendor-vfio", tmp_path)
    for link in (root / "sys/bus/pci/devices").glob("*/iommu_group"):
        link.unlink()
    reasons = all_reasons(look.read(root))
    assert "switch the IOMMU on" in reasons
    assert "can't make one now" not in reasons


# -- mediated devices -------------------------------------------------------


def test_an_mdev_without_an_mdev_parent_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    place = pathlib.Path("devices/virtual/other/foo") / UUID
    build.break_path(root, str(place / "mdev_type"), {"fault": "dangling"})
    link = root / "sys/bus/mdev/devices" / UUID
    link.symlink_to(pathlib.Path("../../..") / place)
    state = look.read(root)
    assert "on foo, which is no mdev parent" in look.reasons(state, UUID)


def test_an_unparsable_description_removes_no_slot(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    types = f"class/mdev_bus/{T4}/mdev_supported_types"
    before = look.device(look.read(root), T4)
    for place in (root / "sys" / types).resolve().iterdir():
        if (place / "name").read_text().strip().partition("-")[2][:1] == "1":
            (place / "description").write_text("no such words\n")
    after = look.device(look.read(root), T4)
    assert after.counters["VGPU"] == before.counters["VGPU"] == 16
    assert look.profile(after, "T4-1Q").available == 16


def test_an_implausible_limit_is_ignored(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    build.break_path(
        root,
        f"class/mdev_bus/{T4}/mdev_supported_types/nvidia-232/description",
        "framebuffer=4096M, max_instance=99999999\n",
    )
    card = look.device(look.read(root), T4)
    assert len(card.slots) < 100
    assert look.profile(card, "T4-4Q").available == 4


def test_totals_are_capped_at_placements_maximum(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    build.break_path(
        root,
        f"class/mdev_bus/{T4}/mdev_supported_types/nvidia-232/description",
        "framebuffer=9999999999M, max_instance=4\n",
    )
    state = look.read(root)
    tree = tree_builder.build_tree(
        strategies.ROOT, state, policy.DeviceRules()
    )
    totals = [i.total for n in tree.nodes for i in n.inventories.values()]
    assert max(totals) == providers.MAX_TOTAL == 0x7FFFFFFF


# -- unreadable files -------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [{"fault": "EIO"}, {"fault": "missing"}, "0x03"]
)
def test_a_function_of_unknown_class_is_unknown(
    tmp_path: pathlib.Path, fault: str | dict[str, str]
) -> None:
    build.build({"functions": [a_gpu(GPU)]}, tmp_path)
    build.break_path(tmp_path, f"bus/pci/devices/{GPU}/class", fault)
    state = look.read(tmp_path)
    assert state.unknown == {GPU}
    assert "can't be read, left out" in look.reasons(state, GPU)


@pytest.mark.parametrize(
    ("driver", "expected"), [("pcieport", [GPU]), ("unknown", [])]
)
def test_an_unreadable_function_of_a_group_may_be_a_port(
    tmp_path: pathlib.Path, driver: str, expected: list[str]
) -> None:
    bridge = "0000:60:01.0"
    port = a_gpu(bridge, driver=driver, group=7, **{"class": "060400"})
    build.build({"functions": [port, a_gpu(GPU, group=7)]}, tmp_path)
    build.break_path(
        tmp_path, f"bus/pci/devices/{bridge}/class", {"fault": "EIO"}
    )
    state = look.read(tmp_path)
    assert [device.address for device in state.devices] == expected
    assert bridge in state.unknown


# -- lines of policy --------------------------------------------------------


@pytest.mark.parametrize("use", ["vf", "mdev"])
def test_a_use_that_no_device_has_is_a_problem(
    tmp_path: pathlib.Path, use: str
) -> None:
    root = look.make("l40s-vendor-vfio", tmp_path)
    state = look.read(root, [json.dumps({"vendor_id": "10de", "use": use})])
    assert state.devices == ()
    assert f"can't be used as {use}" in spec_problem(state)


@pytest.mark.parametrize(
    "line",
    [
        {"use": "vgpu"},
        {"use": "off"},
        {"vendor_id": "10de", "use": "passthrough"},
        {"vendor_id": "10de", "use": "mig"},
        {"use": "vf", "num_vfs": 0},
    ],
)
def test_a_use_with_an_effect_is_no_problem(
    tmp_path: pathlib.Path, line: dict[str, object]
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    state = look.read(root, [json.dumps(line)])
    assert "gives nothing" not in all_reasons(state)
    assert "changes nothing" not in all_reasons(state)


def test_a_line_for_single_vfs_of_a_card_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    line = {"address": VF, "use": "off"}
    state = look.read(root, [json.dumps(line)])
    assert f"name {A40}" in spec_problem(state)


def test_a_card_with_a_function_that_is_off_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    sound = a_gpu("0000:61:00.1", **{"class": "040300"})
    build.build({"functions": [a_gpu(GPU), sound]}, tmp_path)
    assert look.read(tmp_path).device(GPU) is not None
    line = {"address": "0000:61:00.1", "use": "off"}
    state = look.read(tmp_path, [json.dumps(line)])
    assert state.devices == ()
    assert "0000:61:00.1 goes to a guest with it" in look.reasons(state, GPU)


def test_no_profile_is_offered_once_max_slots_are_in_use(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("t4-mdev", tmp_path))
    for limit, is_offered in ((3, False), (4, True)):
        tree = tree_builder.build_tree(
            strategies.ROOT,
            state,
            policy.parse_rules([f'{{"max_slots": {limit}}}']),
        )
        node = next(n for n in tree.nodes if n.name.endswith("af_00_0"))
        assert node.inventories["VGPU"].reserved == 3
        assert ("CUSTOM_VGPU_NVIDIA_T4_4Q" in node.traits) is is_offered
