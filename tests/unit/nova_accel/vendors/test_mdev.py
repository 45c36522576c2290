# SPDX-License-Identifier: Apache-2.0
"""Proves how mdev parents without a driver of their own are described."""

import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors import mdev
from tests.hosts import build, look
from tests.support import examples

IGPU = "0000:00:02.0"
# low_gm_size, high_gm_size, fences (drivers/gpu/drm/i915/gvt), by type.
GVTG = {
    "V5_1": (512, 2048, 4),
    "V5_2": (256, 1024, 4),
    "V5_4": (128, 512, 4),
    "V5_8": (64, 384, 4),
}


def gvtg_available(
    totals: tuple[int, ...], existing: list[str], kind: str
) -> int:
    """Return how many more of a type i915 creates beside others."""
    sizes = [GVTG[name] for name in existing]
    rest = [
        total - sum(size[part] for size in sizes)
        for part, total in enumerate(totals)
    ]
    return min(
        free // size for free, size in zip(rest, GVTG[kind], strict=True)
    )


def gvtg_host(totals: tuple[int, ...], existing: list[str]) -> dict[str, Any]:
    """Return a host whose GPU has these totals and existing mdevs."""
    types = [
        [
            kind,
            None,
            gvtg_available(totals, existing, kind),
            f"low_gm_size: {low}MB\nhigh_gm_size: {high}MB\nfence: 4\n",
        ]
        for kind, (low, high, _) in GVTG.items()
        if gvtg_available(totals, [], kind) > 0
    ]
    return {
        "functions": build.load("gvtg")["functions"],
        "parents": [{"on": IGPU, "prefix": "i915-GVTg", "types": types}],
        "mdevs": [
            {
                "uuid": f"00000000-0000-4000-8000-{number:012}",
                "parent": IGPU,
                "type": f"i915-GVTg-{kind}",
            }
            for number, kind in enumerate(existing)
        ],
    }


@settings(max_examples=examples.examples(30), deadline=None)
@given(
    st.tuples(
        st.sampled_from([160, 416, 928]),
        st.sampled_from([2688, 3456]),
        st.sampled_from([16, 28, 32]),
    ),
    st.lists(st.sampled_from(sorted(GVTG)), max_size=8),
)
def test_gvtg_offers_as_many_as_i915_creates(
    totals: tuple[int, ...], requested: list[str]
) -> None:
    existing: list[str] = []
    for kind in requested:
        if gvtg_available(totals, existing, kind) > 0:
            existing.append(kind)
    host = gvtg_host(totals, existing)
    with tempfile.TemporaryDirectory() as root:
        (card,) = look.read(build.build(host, pathlib.Path(root))).devices
    remaining = device_capacity.remaining(card)
    for profile in card.profiles:
        kind = profile.name.removeprefix("i915-GVTg-")
        assert remaining[profile.name] == gvtg_available(
            totals, existing, kind
        )
    allocated = sum(GVTG[kind][0] for kind in existing)
    assert allocated <= card.counters["CUSTOM_GPU_MEMORY_MB"] <= totals[0]
    assert card.counters["VGPU"] == len(existing) + max(remaining.values())


def test_the_use_that_policy_names_counts(tmp_path: pathlib.Path) -> None:
    gpu = look.make("gvtg", tmp_path / "gpu")
    other = look.make("mtty", tmp_path / "other")
    for use, on_gpu, on_other in (
        (policy.DeviceUse.AUTO, True, True),
        (policy.DeviceUse.MDEV, True, True),
        (policy.DeviceUse.VGPU, True, False),
        (policy.DeviceUse.VF, False, False),
        (policy.DeviceUse.OFF, False, False),
    ):
        rules = policy.DeviceRules(rules=(policy.Rule(use=use),))
        for root, offered in ((gpu, on_gpu), (other, on_other)):
            host = host_reader.HostReader(root)
            devices = mdev.MdevDriver().describe(host, rules, frozenset())
            assert bool(list(devices)) is offered, use


def test_nvidias_parents_are_another_drivers(tmp_path: pathlib.Path) -> None:
    host = host_reader.HostReader(look.make("t4-mdev", tmp_path))
    devices = mdev.MdevDriver().describe(
        host, policy.DeviceRules(), frozenset()
    )
    assert list(devices) == []


def test_a_parent_that_another_driver_described_is_left_to_it(
    tmp_path: pathlib.Path,
) -> None:
    host = host_reader.HostReader(look.make("gvtg", tmp_path))
    devices = mdev.MdevDriver().describe(
        host, policy.DeviceRules(), frozenset({IGPU})
    )
    assert list(devices) == []


def test_a_parent_is_offered_as_far_as_it_can_be_read(
    tmp_path: pathlib.Path,
) -> None:
    host = build.load("gvtg")
    types = f"class/mdev_bus/{IGPU}/mdev_supported_types"
    host["faults"] = [
        {"path": f"{types}/i915-GVTg_V5_4/description", "is": "weight: 4\n"},
        {"path": f"{types}/i915-GVTg_V5_8/available_instances", "is": "few"},
    ]
    state = look.read(build.build(host, tmp_path))
    (card,) = state.devices
    assert [p.available for p in card.profiles] == [0, 0]
    # Existing mdevs stay accounted for.
    assert card.counters == {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 64}
    assert "memory" in look.reasons(state, f"{IGPU} i915-GVTg_V5_4")
    assert "few" in look.reasons(state, f"{IGPU} i915-GVTg_V5_8")


def test_a_type_without_device_api_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    host = build.load("gvtg")
    place = f"class/mdev_bus/{IGPU}/mdev_supported_types/i915-GVTg_V5_8"
    host["faults"] = [{"path": f"{place}/device_api", "is": {"fault": "EIO"}}]
    state = look.read(build.build(host, tmp_path))
    (card,) = state.devices
    assert look.profile(card, "i915-GVTg_V5_8").available == 0
    assert "device_api" in look.reasons(state, f"{IGPU} i915-GVTg_V5_8")


def test_a_parent_that_a_guest_has_makes_no_mdevs(
    tmp_path: pathlib.Path,
) -> None:
    host = build.load("gvtg")
    host["functions"][0] |= {"driver": "vfio-pci", "boot_vga": 0}
    del host["mdevs"]
    (device,) = look.read(build.build(host, tmp_path)).devices
    assert device.technology == "passthrough"


def test_all_vfs_of_a_card_are_one_device(
    tmp_path: pathlib.Path,
) -> None:
    vfs = [f"0000:41:00.{number}" for number in (1, 2, 3)]
    host = {
        "functions": [
            {
                "address": "0000:41:00.0",
                "id": "1234:5678",
                "class": "120000",
                "driver": "any",
                "vfs": {"total": 4, "count": 3, "offset": 1},
            }
        ],
        "parents": [
            {
                "on": vfs,
                "prefix": "any",
                "types": [["a", None, 1, None], ["b", None, 4, None]],
            }
        ],
        "mdevs": [
            {
                "uuid": "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
                "parent": vfs[0],
                "type": "any-a",
            }
        ],
        "faults": [
            {
                "path": f"class/mdev_bus/{vfs[0]}/mdev_supported_types"
                f"/any-{name}/available_instances",
                "is": "0\n",
            }
            for name in "ab"
        ],
    }
    (card,) = look.read(build.build(host, tmp_path)).devices
    assert (card.address, card.slots) == ("0000:41:00.0", tuple(vfs))
    assert card.counters == {"CUSTOM_MDEV": 3}
    # A slot is a VF, so each is good for one.
    assert {p.name: p.available for p in card.profiles} == {
        "any-a": 2,
        "any-b": 2,
    }
    assert card.partitions[0].parent == vfs[0]


@pytest.mark.parametrize(
    ("host", "address", "count"),
    [
        ("mtty", "mtty", mdev.MAX_SLOTS),  # makes 23
        ("s390", "matrix", mdev.MAX_SLOTS),  # makes 65,535
        ("s390", "0.0.0052", 1),
        ("s390", "0.0.0313", 1),
    ],
)
def test_a_parent_has_slots_for_all_that_it_may_make(
    tmp_path: pathlib.Path, host: str, address: str, count: int
) -> None:
    device = look.device(look.read(look.make(host, tmp_path)), address)
    assert device.slots == tuple(f"slot-{n}" for n in range(count))


def parent(on: str, api: str, *types: list[object]) -> dict[str, object]:
    return {
        "on": on,
        "at": "devices/virtual",
        "driver": "vfio_any",
        "prefix": "any",
        "api": api,
        "types": list(types),
    }


def test_a_parent_without_types_is_a_problem(tmp_path: pathlib.Path) -> None:
    root = build.build({"parents": [parent("odd", "vfio-pci")]}, tmp_path)
    state = look.read(root)
    assert state.devices == ()
    assert "without types" in look.reasons(state, "odd")


def test_a_claims_mdev_is_made_and_removed() -> None:
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=IGPU,
        profile="i915-GVTg_V5_8",
        slot="slot-0",
        parent=IGPU,
        handle="5a1ab1e5-0000-4000-8000-000000000002",
        technology="mdev",
        type_id="i915-GVTg_V5_8",
    )
    driver = mdev.MdevDriver()
    (made,) = driver.plan_prepare(claim)
    (removed,) = driver.plan_release(claim)
    assert made == actions.CreateMdev(
        parent=IGPU, type_id="i915-GVTg_V5_8", uuid=claim.handle
    )
    assert removed == made.undo()
    assert removed.undo() == made
