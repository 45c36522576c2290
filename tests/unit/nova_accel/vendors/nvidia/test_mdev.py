# SPDX-License-Identifier: Apache-2.0
"""Proves how NVIDIA cards with mdevs are described and arranged."""

import json
import pathlib

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors.nvidia import mdev_driver
from tests.hosts import build, look

T4 = "0000:3b:00.0"
FULL_T4 = "0000:af:00.0"
A40 = "0000:41:00.0"


def test_slots_stay_while_mdevs_come_and_go(tmp_path: pathlib.Path) -> None:
    description = build.load("a40-vf-mdev")
    empty = {**description, "mdevs": []}
    with_one = look.read(build.build(description, tmp_path / "1"))
    without = look.read(build.build(empty, tmp_path / "0"))
    assert look.device(with_one, A40).slots == look.device(without, A40).slots


def test_the_hosts_own_display_is_for_a_line(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("nvidia-broken", tmp_path)
    display = "0000:25:00.0"
    requested = look.read(root, [f'{{"address": "{display}", "use": "vgpu"}}'])
    assert (
        look.profile(look.device(requested, display), "T4-1Q").available == 16
    )


@pytest.mark.parametrize("use", ["passthrough", "off"])
def test_another_use_takes_the_card_away(
    tmp_path: pathlib.Path, use: str
) -> None:
    root = look.make("t4-mdev", tmp_path)
    state = look.read(root, [f'{{"address": "{T4}", "use": "{use}"}}'])
    addresses = [d.address for d in state.devices if d.technology == "mdev"]
    assert addresses == [FULL_T4]


# -- sizes and policy -----------------------------------------------------


def sizes(*, is_mixed: bool | None) -> nvml_gpus.NvmlGpu:
    return nvml_gpus.NvmlGpu(address=A40, is_mig=False, is_mixed=is_mixed)


def test_mixed_sizes_have_places(tmp_path: pathlib.Path) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    (card,) = look.read(root, gpus=[sizes(is_mixed=True)]).devices
    assert card.geometry.layout is model.Layout.MIXED
    assert card.geometry.region == 48
    profile = look.profile(card, "A40-8Q")
    assert (profile.span, profile.starts) == (8, (0, 16, 24, 40))
    # The placement of an mdev is unknown; the driver says one more fits.
    assert profile.available == 1


def test_policy_decides_the_mode_without_nvml(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    (card,) = look.read(root, ['{"sizes": "mixed"}']).devices
    assert card.geometry.layout is model.Layout.MIXED
    state = look.read(root, ['{"sizes": "mixed"}'], [sizes(is_mixed=False)])
    assert look.device(state, A40).geometry.layout is model.Layout.EQUAL
    assert "-shm 1" in look.reasons(state, A40)


def test_a_card_without_sriov_has_no_mixed_sizes(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("t4-mdev", tmp_path), ['{"sizes": "mixed"}'])
    assert look.device(state, T4).geometry.layout is model.Layout.EQUAL
    assert "no such mode" in look.reasons(state, T4)


def test_policy_chooses_profiles_and_limits(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    spec = {
        "profiles": ["T4-*Q"],
        "max_instances": {"T4-2Q": 3, "T4-32Q": 1},
        "vgpu_params": "frame_rate_limiter=0",
    }
    state = look.read(root, [json.dumps(spec)])
    card = look.device(state, T4)
    assert {p.name for p in card.profiles if p.available} == {
        "T4-1Q",
        "T4-2Q",
        "T4-4Q",
        "T4-8Q",
        "T4-16Q",
    }
    assert look.profile(card, "T4-2Q").available == 3
    assert card.vgpu_params == "frame_rate_limiter=0"
    assert "max_instances names T4-32Q" in look.reasons(state, T4)


def test_a_policy_without_matching_profiles_is_reported(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    state = look.read(root, ['{"profiles": ["A40-*"]}'])
    assert "offers nothing" in look.reasons(state, T4)
    # Existing vGPUs are counted, and no more are offered.
    used = look.device(state, FULL_T4)
    assert not any(p.available for p in used.profiles)
    assert used.counters["VGPU"] == 3


# -- plans ----------------------------------------------------------------


def claim(**fields: object) -> model.Claim:
    values: dict[str, object] = {
        "consumer": "c",
        "provider": "p",
        "device": A40,
        "profile": "A40-8Q",
        "slot": "0000:41:00.5",
        "parent": "0000:41:00.5",
        "handle": "5a1ab1e5-0000-4000-8000-000000000002",
        "technology": "mdev",
        "type_id": "nvidia-562",
        **fields,
    }
    return model.Claim(**values)  # type: ignore[arg-type]


def test_a_claims_mdev_is_made_and_removed() -> None:
    driver = mdev_driver.NvidiaMdevDriver()
    vgpu_claim = claim(start=8)  # an mdev has no placement
    (made,) = driver.plan_prepare(vgpu_claim)
    (removed,) = driver.plan_release(vgpu_claim)
    assert made == actions.CreateMdev(
        parent=vgpu_claim.parent, type_id="nvidia-562", uuid=vgpu_claim.handle
    )
    assert removed == made.undo()


def test_an_instance_comes_first_and_goes_last() -> None:
    driver = mdev_driver.NvidiaMdevDriver()
    vgpu_claim = claim(
        instance="1g.5gb",
        instance_start=3,
        owns_instance=True,
        vgpu_params="a=1",
    )
    kinds = [type(a) for a in driver.plan_prepare(vgpu_claim)]
    assert kinds == [
        actions.CreateInstance,
        actions.CreateMdev,
        actions.SetVgpuParams,
    ]
    *_, last = driver.plan_release(vgpu_claim)
    assert last == actions.DestroyInstance(gpu=A40, kind="1g.5gb")


@pytest.mark.parametrize(
    ("is_mixed", "expected"),
    [(None, 0), (True, 0), (False, 1)],
)
def test_a_mode_is_switched_only_on_an_empty_card(
    tmp_path: pathlib.Path, is_mixed: bool | None, expected: int
) -> None:
    description = build.load("a40-vf-mdev")
    gpus = {A40: sizes(is_mixed=is_mixed)}
    rules = policy.parse_rules(['{"sizes": "mixed"}'])
    driver = mdev_driver.NvidiaMdevDriver()
    used = build.build(description, tmp_path / "used")
    assert (
        driver.plan_arrange(host_reader.HostReader(used, gpus=gpus), rules)
        == ()
    )
    empty = build.build({**description, "mdevs": []}, tmp_path / "empty")
    planned = driver.plan_arrange(
        host_reader.HostReader(empty, gpus=gpus), rules
    )
    action = actions.SetMixedSizes(gpu=A40, is_mixed=True)
    assert planned == (action,) * expected
