# SPDX-License-Identifier: Apache-2.0
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import host_reader
from nova_accel.vendors import amd_mxgpu
from tests.hosts import build, look

MI25 = "0000:43:00.0"
WHOLE = "0000:05:00.0"
EIGHTH = "0000:15:00.0"
NONE_MADE = "0000:63:00.0"
UNBOUND = "0000:85:00.0"


def card(count: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "address": MI25,
        "id": "1002:6860",
        "class": "038000",
        "driver": "gim",
        "group": 1,
        "vfs": {
            "total": 16,
            "count": count,
            "offset": 16,
            "id": "1002:686c",
            "first_group": 10,
        },
        **facts,
    }


def read(
    root: pathlib.Path, one: dict[str, Any], rule: policy.Rule | None = None
) -> model.HostState:
    build.build({"functions": [one]}, root)
    rules = policy.Policy(rules=(rule,) if rule else ())
    return scan.read(host_reader.HostReader(root), look.DRIVERS, rules)


def test_a_card_is_what_its_vfs_are(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("amd-vf", tmp_path))
    found = look.device(state, MI25)
    assert (found.technology, found.plugin) == ("vf", "amd_mxgpu")
    assert (found.vendor, found.model) == ("amd", "1002:6860")
    assert found.counters == {"VGPU": 5}
    (profile,) = found.profiles
    assert profile.trait == "CUSTOM_GPU_VF_AMD_6860"
    assert profile.charges == {"VGPU": 1}
    # gim puts VFs sixteen functions behind their PF.
    assert found.slots == tuple(f"0000:43:02.{n}" for n in (0, 1, 4, 5, 7))


def test_each_vf_that_is_left_out_has_its_reason(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("amd-vf", tmp_path))
    assert "radeon" in look.reasons(state, "0000:43:02.2")
    assert "reset_method" in look.reasons(state, "0000:43:02.3")
    assert "IOMMU" in look.reasons(state, "0000:43:02.6")


def test_gim_tells_how_a_card_is_divided(tmp_path: pathlib.Path) -> None:
    found = look.device(look.read(look.make("amd-vf", tmp_path)), WHOLE)
    assert found.traits >= {
        "CUSTOM_ACCELERATOR_SPATIAL_SPX",
        "CUSTOM_ACCELERATOR_MEMORY_NPS1",
        "CUSTOM_ACCELERATOR_XGMI_HIVE_10403190583957872000",
        "CUSTOM_ACCELERATOR_VFS_1",
    }


def test_a_failure_told_in_a_text_is_no_fact(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("amd-vf", tmp_path))
    found = look.device(state, EIGHTH)
    assert found.counters == {"VGPU": 8}
    assert not [t for t in found.traits if "FAILED" in t or "NPS" in t]
    assert "failed to get current mp mode" in look.reasons(state, EIGHTH)


def test_without_vfs_the_mend_is_gims_own(tmp_path: pathlib.Path) -> None:
    state = look.read(look.make("amd-vf", tmp_path))
    assert "options gim vf_num=N" in look.reasons(state, NONE_MADE)
    assert state.device(NONE_MADE) is None


def test_a_card_that_nothing_has_goes_whole(tmp_path: pathlib.Path) -> None:
    # A GPU although its class is that of any processing accelerator.
    found = look.device(look.read(look.make("amd-vf", tmp_path)), UNBOUND)
    assert found.technology == "passthrough"
    assert found.counters == {"PGPU": 1}


def test_vf_counts_are_gims_to_set(tmp_path: pathlib.Path) -> None:
    rule = policy.Rule(num_vfs=4)
    state = read(tmp_path, card(), rule)
    assert look.device(state, MI25).counters == {"VGPU": 2}
    assert "options gim vf_num=N" in look.reasons(state, MI25)
    planned = amd_mxgpu.AmdMxgpuDriver().plan_arrange(
        host_reader.HostReader(tmp_path), policy.Policy(rules=(rule,))
    )
    assert planned == ()


def test_an_mi300x_has_one_vf_or_eight(tmp_path: pathlib.Path) -> None:
    one = card(0, id="1002:74a1")
    one["class"] = "120000"
    assert "1 or 8" in look.reasons(read(tmp_path, one), MI25)


@pytest.mark.parametrize(
    ("facts", "use", "word"),
    [
        ({"driver": "amdgpu"}, policy.DeviceUse.AUTO, "bound to amdgpu"),
        ({"driver": None}, policy.DeviceUse.AUTO, "bound to no driver"),
        ({"vfs": None}, policy.DeviceUse.VF, "SR-IOV"),
    ],
)
def test_vfs_need_gim(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    use: policy.DeviceUse,
    word: str,
) -> None:
    one = {k: v for k, v in card(**facts).items() if v is not None}
    state = read(tmp_path, one, policy.Rule(address=MI25, use=use))
    assert state.devices == ()
    assert word in look.reasons(state, MI25)


def test_nothing_of_a_vf_is_to_be_made(tmp_path: pathlib.Path) -> None:
    (found,) = read(tmp_path, card()).devices
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=MI25,
        profile=found.profiles[0].name,
        slot=found.slots[0],
        parent=found.slots[0],
        handle=found.slots[0],
        technology=found.technology,
    )
    driver = look.DRIVERS[found.plugin]
    assert driver.plan_prepare(claim) == driver.plan_release(claim) == ()
