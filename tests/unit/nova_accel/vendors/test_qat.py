# SPDX-License-Identifier: Apache-2.0
"""Proves how Intel QAT devices are described and arranged."""

import json
import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors import qat
from tests.hosts import build, look
from tests.support import examples

PF = "0000:6b:00.0"
DOWN = "0000:70:00.0"
IDLE = "0000:75:00.0"


def pf(
    services: str = "sym;asym", state: str = "up", **vfs: Any
) -> dict[str, Any]:
    return {
        "address": PF,
        "id": "8086:4940",
        "class": "0b4000",
        "driver": "4xxx",
        "group": 1,
        "attributes": {"qat/state": state, "qat/cfg_services": services},
        "vfs": {
            "total": 16,
            "count": 2,
            "offset": 1,
            "id": "8086:4941",
            "first_group": 10,
            **vfs,
        },
    }


def arrange(
    root: pathlib.Path, function: dict[str, Any], **rule: Any
) -> tuple[actions.Action, ...]:
    build.build({"functions": [function]}, root)
    rules = policy.DeviceRules(rules=(policy.Rule(address=PF, **rule),))
    driver = qat.QatDriver()
    return tuple(driver.plan_arrange(host_reader.HostReader(root), rules))


def count(number: int, before: int) -> actions.SetVfCount:
    return actions.SetVfCount(
        function=PF, count=number, before=before, is_probed=False
    )


def services(word: str, before: str) -> actions.SetServices:
    return actions.SetServices(function=PF, services=word, before=before)


@pytest.mark.parametrize(
    ("driver", "total", "reason"),
    [
        ("4xxx", None, f"switch on SR-IOV in the firmware for {PF}"),
        ("4xxx", 0, "4xxx allows none (sriov_totalvfs reads 0)"),
    ],
)
def test_vfs_that_cannot_be_are_explained_by_what_the_kernel_found(
    tmp_path: pathlib.Path, driver: str, total: int | None, reason: str
) -> None:
    """The kernel makes the file for each function with the capability."""
    function = pf(total=total or 0, count=0) | {"driver": driver}
    if total is None:
        del function["vfs"]
    build.build({"functions": [function]}, tmp_path)
    state = look.read(tmp_path, [json.dumps({"address": PF, "use": "vf"})])
    assert look.reasons(state, PF).endswith(reason)


def test_only_variant_drivers_are_not_replaced(tmp_path: pathlib.Path) -> None:
    # All VFs are bound to qat_vfio_pci, which supports live migration.
    state = look.read(look.make("qat", tmp_path))
    assert not look.device(state, DOWN).is_managed
    assert look.device(state, PF).is_managed


def test_a_pf_without_vfs_is_no_problem_unless_asked(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("qat", tmp_path)
    assert look.reasons(look.read(root), IDLE) == ""
    for rule, word in (
        ({"use": "vf"}, '"num_vfs": 16'),
        ({"num_vfs": 4}, "when nova-compute starts"),
        ({"services": "sym"}, "it gives dc"),
    ):
        line = json.dumps({"address": IDLE, **rule})
        assert word in look.reasons(look.read(root, [line]), IDLE)


@pytest.mark.parametrize(
    ("facts", "rule", "planned"),
    [
        ({"count": 0}, {"num_vfs": 4}, (count(4, 0),)),
        # Any number enables all VFs, so existing VFs are enough.
        ({"count": 2}, {"num_vfs": 4}, ()),
        ({"count": 0}, {"num_vfs": 99}, (count(16, 0),)),
        ({"count": 2}, {"num_vfs": 0}, (count(0, 2),)),
        ({"count": 0}, {"num_vfs": 0}, ()),
        ({"count": 0}, {"services": "dc"}, (services("dc", "sym;asym"),)),
        ({"count": 2}, {"services": "asym;sym"}, ()),
        (
            {"count": 2},
            {"services": "dc"},
            (count(0, 2), services("dc", "sym;asym"), count(2, 0)),
        ),
        (
            {"count": 0},
            {"services": "sym", "num_vfs": 16},
            (services("sym", "sym;asym"), count(16, 0)),
        ),
        ({"count": 2, "driver": "vfio-pci"}, {"services": "dc"}, ()),
        ({"count": 2, "driver": "vfio-pci"}, {"num_vfs": 0}, ()),
        # The host's cryptography may be using these.
        ({"count": 2, "driver": "4xxxvf"}, {"services": "dc"}, ()),
        ({"count": 0}, {"num_vfs": 4, "use": policy.DeviceUse.OFF}, ()),
    ],
)
def test_vfs_and_services_follow_policy_while_unused(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    rule: dict[str, Any],
    planned: tuple[actions.Action, ...],
) -> None:
    assert arrange(tmp_path, pf(**facts), **rule) == planned


def test_services_that_are_fixed_or_unreadable_stay(
    tmp_path: pathlib.Path,
) -> None:
    old = pf(count=0)
    old |= {"id": "8086:37c8", "driver": "c6xx"}
    assert arrange(tmp_path / "1", old, services="dc") == ()
    line = json.dumps({"address": PF, "services": "dc"})
    state = look.read(tmp_path / "1", [line])
    assert "always gives asym;dc;sym" in look.reasons(state, PF)
    silent = pf(count=0)
    del silent["attributes"]
    assert arrange(tmp_path / "2", silent, services="dc") == ()


@pytest.mark.parametrize(
    ("word", "driver", "offered"),
    [("N", None, 0), ("N", "vfio-pci", 2), ("Y", None, 2), (None, None, 2)],
)
def test_older_devices_need_the_denylist_disabled(
    tmp_path: pathlib.Path, word: str | None, driver: str | None, offered: int
) -> None:
    old = pf(driver=driver)
    old |= {"id": "8086:37c8", "driver": "c6xx"}
    old["vfs"]["id"] = "8086:37c9"
    place = "module/vfio_pci/parameters/disable_denylist"
    faults = [{"path": place, "is": f"{word}\n"}] if word else []
    build.build({"functions": [old], "faults": faults}, tmp_path)
    state = look.read(tmp_path)
    assert sum(len(d.slots) for d in state.devices) == offered
    reasons = look.reasons(state, PF)
    assert ("disable_denylist" in reasons) is not bool(offered)


def test_without_an_iommu_nothing_is_offered(tmp_path: pathlib.Path) -> None:
    bare = pf()
    del bare["group"], bare["vfs"]["first_group"]
    build.build({"functions": [bare]}, tmp_path)
    state = look.read(tmp_path)
    assert state.devices == ()
    assert "IOMMU" in look.reasons(state, PF)


def test_a_vf_whose_pf_is_gone_is_reported(tmp_path: pathlib.Path) -> None:
    gone = {
        "path": f"bus/pci/devices/{PF}",
        "is": {"fault": "missing"},
    }
    build.build({"functions": [pf()], "faults": [gone]}, tmp_path)
    state = look.read(tmp_path)
    assert state.devices == ()
    assert "gone from the bus" in look.reasons(state, "0000:6b:00.1")


@pytest.mark.parametrize("product", sorted(pci_ids.QAT))
def test_each_family_is_found_by_its_ids(
    tmp_path: pathlib.Path, product: str
) -> None:
    family = pci_ids.QAT[product]
    card = pf(id=f"8086:{family.vf}", driver="vfio-pci")
    card |= {"id": f"8086:{product}", "driver": family.driver}
    build.build({"functions": [card]}, tmp_path)
    (device,) = look.read(tmp_path).devices
    assert device.model == f"QAT {family.name}"


WORDS = st.sampled_from(
    ["", "up", "down", "sym", "dc;;asym", ";", "zstd", "-1", "9", "\x01", "7G"]
)


@given(
    state=WORDS,
    word=WORDS,
    fatal=WORDS,
    drivers=st.lists(
        st.sampled_from([None, "vfio-pci", "4xxxvf", "qat_vfio_pci"]),
        max_size=4,
    ),
)
@settings(max_examples=examples.examples(30), deadline=None)
def test_offered_vfs_are_counted_for_any_files(
    state: str, word: str, fatal: str, drivers: list[str | None]
) -> None:
    card = pf(
        word,
        state,
        count=len(drivers),
        driver_of={str(n): d for n, d in enumerate(drivers)},
    )
    card["attributes"]["qat_ras/errors_fatal"] = fatal
    with tempfile.TemporaryDirectory() as root:
        build.build({"functions": [card]}, pathlib.Path(root))
        host = look.read(pathlib.Path(root))
    assert not [p for p in host.problems if p.where.startswith("driver ")]
    usable = [d for d in drivers if d != "4xxxvf"]
    assert sum(d.counters["CUSTOM_QAT_VF"] for d in host.devices) == len(
        usable
    )
