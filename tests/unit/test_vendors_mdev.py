# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

import pytest

from nova_accel import actions, model, names, packing
from nova_accel.vendors import mdev
from tests.hosts import build, look

T4 = "0000:3b:00.0"
FULL_T4 = "0000:af:00.0"
A40 = "0000:41:00.0"


def test_a_card_with_types_is_one_device(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("t4-mdev", tmp_path))
    assert [d.address for d in state.devices] == [T4, FULL_T4]
    card = look.device(state, T4)
    assert (card.vendor, card.model, card.technology) == (
        "nvidia",
        "T4",
        "mdev",
    )
    assert (card.driver, card.numa_node) == ("nvidia", 0)
    assert card.counters == {"VGPU": 16, "CUSTOM_GPU_MEMORY_MB": 16384}
    assert card.slots == names.slot_names(16)
    profile = look.profile(card, "T4-4Q")
    assert profile.trait == "CUSTOM_VGPU_NVIDIA_T4_4Q"
    assert profile.charges == {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}
    assert profile.available == 4
    assert profile.handles == {T4: "nvidia-232"}
    assert profile.device_api == "vfio-pci"


def test_existing_mdevs_are_partitions(tmp_path: pathlib.Path) -> None:
    card = look.device(look.read(look.make("t4-mdev", tmp_path)), FULL_T4)
    assert {p.profile for p in card.partitions} == {"T4-4Q"}
    assert len(card.partitions) == 3
    assert all(p.parent == FULL_T4 and p.in_use for p in card.partitions)
    assert card.counters["VGPU"] == 4
    assert card.slots == names.slot_names(16)
    left = packing.remaining(card)
    assert left["T4-4Q"] == left["T4-4C"] == 1
    assert left["T4-1Q"] == left["T4-16Q"] == 0


def test_vfs_are_folded_onto_their_card(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("a40-vf-mdev", tmp_path))
    (card,) = state.devices
    assert (card.address, card.model) == (A40, "A40")
    # 16 VFs, and the last one is given away to a guest as it is.
    assert len(card.slots) == 15
    assert "0000:41:02.3" not in card.slots
    profile = look.profile(card, "A40-8Q")
    # 14 VFs say they could, yet 48 GiB hold six in all.
    assert profile.available == 5
    assert card.counters == {"VGPU": 6, "CUSTOM_GPU_MEMORY_MB": 49152}
    assert set(profile.handles) == set(card.slots)
    assert set(profile.handles.values()) == {"nvidia-562"}
    (partition,) = card.partitions
    assert (partition.profile, partition.parent) == ("A40-8Q", card.slots[0])
    assert state.problems == ()


def test_slots_stay_while_mdevs_come_and_go(tmp_path: pathlib.Path) -> None:
    description = json.loads(json.dumps(build.load("a40-vf-mdev")))
    empty = {**description, "mdevs": []}
    with_one = look.read(build.build(description, tmp_path / "1"))
    without = look.read(build.build(empty, tmp_path / "0"))
    assert look.device(with_one, A40).slots == look.device(without, A40).slots


def test_a_gvtg_gpu_offers_what_its_aperture_holds(
    tmp_path: pathlib.Path,
) -> None:
    (card,) = look.read(look.make("gvtg", tmp_path)).devices
    assert (card.resource_class, card.vendor) == ("VGPU", "intel")
    assert card.counters == {"VGPU": 2}
    assert look.profile(card, "i915-GVTg_V5_8").available == 1
    assert look.profile(card, "i915-GVTg_V5_4").available == 0
    assert card.partitions[0].profile == "i915-GVTg_V5_8"


def test_a_parent_that_is_no_gpu_has_a_class_of_its_own(
    tmp_path: pathlib.Path,
) -> None:
    (device,) = look.read(look.make("mtty", tmp_path)).devices
    assert (device.address, device.vendor) == ("mtty", "")
    assert device.resource_class == "CUSTOM_MDEV"
    # One that exists, and 22 more of the type that takes least.
    assert device.counters == {"CUSTOM_MDEV": 23}
    assert len(device.slots) == mdev.MAX_SLOTS
    assert device.partitions == (
        model.Partition(
            profile="mtty-2",
            parent="mtty",
            handle="83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        ),
    )


def parent(on: str, api: str, *types: list[object]) -> dict[str, object]:
    return {
        "on": on,
        "at": "devices/virtual",
        "driver": "vfio_any",
        "prefix": "any",
        "api": api,
        "types": list(types),
    }


def test_boundless_parents_are_capped(tmp_path: pathlib.Path) -> None:
    root = build.build(
        {"parents": [parent("matrix", "vfio-ap", ["ap", "AP", 65535, None])]},
        tmp_path,
    )
    (device,) = look.read(root).devices
    assert device.counters == {"CUSTOM_MDEV": mdev.MAX_SLOTS}
    assert len(device.slots) == mdev.MAX_SLOTS


def test_a_subchannel_is_one_slot_whatever_its_state(
    tmp_path: pathlib.Path,
) -> None:
    uuid = "c60cc60c-c60c-c60c-c60c-c60cc60cc60c"
    root = build.build(
        {
            "parents": [
                parent("0.0.0052", "vfio-ccw", ["io", "I/O", 0, None]),
                parent("0.0.0313", "vfio-ccw", ["io", "I/O", 1, None]),
            ],
            "mdevs": [{"uuid": uuid, "parent": "0.0.0052", "type": "any-io"}],
        },
        tmp_path,
    )
    used, free = look.read(root).devices
    assert used.slots == free.slots == ("slot-0",)
    assert used.counters == free.counters == {"CUSTOM_MDEV": 1}
    assert [p.handle for p in used.partitions] == [uuid]
    assert used.driver == "vfio_any"


def test_a_half_readable_card_offers_the_rest(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("broken", tmp_path))
    card = look.device(state, "0000:11:00.0")
    available = {p.name: p.available for p in card.profiles}
    assert available["T4-1Q"] == 16
    assert available["T4-2B"] == 0  # number unreadable
    assert available["T4-2Q"] == 0  # memory unreadable
    assert available["T4-8Q"] == 0  # number malformed
    assert available["T4-16Q"] == 0  # no device_api
    assert not {"T4-4Q", "nvidia-232", "T4-1B"} & available.keys()
    assert card.counters == {"VGPU": 16, "CUSTOM_GPU_MEMORY_MB": 16384}
    assert len(card.slots) == 16
    assert "no framebuffer" in look.reasons(state, f"{card.address} T4-2Q")
    assert "no device_api" in look.reasons(state, f"{card.address} T4-16Q")
    assert "no name" in look.reasons(state, f"{card.address} nvidia-232")
    (partition,) = card.partitions
    assert partition.profile == "unknown"
    assert packing.free_counters(card)["VGPU"] == 15


@pytest.mark.parametrize("use", ["passthrough", "off"])
def test_another_use_takes_the_card_away(
    tmp_path: pathlib.Path, use: str
) -> None:
    root = look.make("t4-mdev", tmp_path)
    state = look.read(root, [f'{{"address": "{T4}", "use": "{use}"}}'])
    left = [d.address for d in state.devices if d.technology == "mdev"]
    assert left == [FULL_T4]


def test_a_claims_mdev_is_made_and_removed() -> None:
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=A40,
        profile="A40-8Q",
        slot="0000:41:00.5",
        parent="0000:41:00.5",
        handle="5a1ab1e5-0000-4000-8000-000000000002",
        technology="mdev",
        type_id="nvidia-562",
    )
    driver = mdev.MdevDriver()
    (made,) = driver.plan_prepare(claim)
    (removed,) = driver.plan_release(claim)
    assert made == actions.CreateMdev(
        parent=claim.parent, type_id="nvidia-562", uuid=claim.handle
    )
    assert removed == made.undo()
    assert removed.undo() == made
