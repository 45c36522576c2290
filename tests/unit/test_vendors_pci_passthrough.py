# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.vendors import pci_passthrough
from tests.hosts import build, look

GPU = "0000:01:00.0"


def gpu(**facts: Any) -> dict[str, Any]:
    return {
        "address": GPU,
        "id": "10de:2236",
        "class": "030200",
        "group": 1,
        **facts,
    }


def card(
    root: pathlib.Path, *functions: dict[str, Any], rule: object = None
) -> model.HostState:
    build.build({"functions": list(functions)}, root)
    return look.read(root, [json.dumps(rule)] if rule else [])


def test_a_host_is_offered_what_nobody_on_it_uses(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("passthrough", tmp_path))
    offered = {d.address: d for d in state.devices}
    assert list(offered) == ["0000:65:00.0", "0000:e1:00.0", "10000:01:00.0"]
    rtx = offered["0000:65:00.0"]
    assert rtx.members == ("0000:65:00.1", "0000:65:00.2", "0000:65:00.3")
    assert rtx.counters == {"PGPU": 1}
    assert rtx.slots == (rtx.address,)
    assert rtx.technology == "passthrough"
    (profile,) = rtx.profiles
    assert profile.name == "10de:1e30"
    assert profile.trait == "CUSTOM_GPU_PCI_10DE_1E30"
    assert profile.available == 1
    # Two cards in one group can only go to one guest.
    assert offered["0000:e1:00.0"].members == ("0000:e2:00.0",)
    assert [p.where for p in state.problems] == ["0000:d3:00.0"]
    assert "0000:d4:00.0" in state.problems[0].reason
    assert "nvme" in state.problems[0].reason


@pytest.mark.parametrize("driver", [None, "vfio-pci", "pci-stub"])
def test_a_free_gpu_is_offered(
    tmp_path: pathlib.Path, driver: str | None
) -> None:
    (device,) = card(tmp_path, gpu(driver=driver)).devices
    assert device.driver == driver


@pytest.mark.parametrize(
    "facts",
    [
        {"driver": "nvidia"},
        {"boot_vga": 1},
        {"vfs": {"total": 4, "count": 2, "offset": 1}},
        {"class": "020000"},
        {"class": "120000"},
    ],
)
def test_by_default_the_rest_is_left_alone(
    tmp_path: pathlib.Path, facts: dict[str, Any]
) -> None:
    state = card(tmp_path, gpu(**facts))
    assert state.devices == ()
    assert state.problems == ()


def test_passthrough_on_request_takes_a_bound_gpu(
    tmp_path: pathlib.Path,
) -> None:
    (device,) = card(
        tmp_path,
        gpu(driver="nvidia"),
        rule={"address": GPU, "use": "passthrough"},
    ).devices
    assert (device.resource_class, device.driver) == ("PGPU", "nvidia")


def test_passthrough_on_request_takes_any_class(
    tmp_path: pathlib.Path,
) -> None:
    nvme = gpu(id="144d:a824", driver="nvme")
    nvme["class"] = "010802"
    (device,) = card(
        tmp_path, nvme, rule={"vendor_id": "144d", "use": "passthrough"}
    ).devices
    assert device.resource_class == "CUSTOM_PCI_144D_A824"
    assert device.profiles[0].trait == "CUSTOM_ACCELERATOR_PCI_144D_A824"
    assert device.profiles[0].charges == {"CUSTOM_PCI_144D_A824": 1}


def test_a_line_for_everything_spares_the_hosts_own_devices(
    tmp_path: pathlib.Path,
) -> None:
    nic = {**gpu(driver="ice", group=2), "address": "0000:02:00.0"}
    nic["class"] = "020000"
    state = card(
        tmp_path, gpu(driver="nvidia"), nic, rule={"use": "passthrough"}
    )
    assert [d.address for d in state.devices] == [GPU]


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"boot_vga": 1}, "boot display"),
        ({"vfs": {"total": 4, "count": 2, "offset": 1}}, "sriov_numvfs"),
    ],
)
def test_what_stands_against_a_request_is_told(
    tmp_path: pathlib.Path, facts: dict[str, Any], word: str
) -> None:
    state = card(
        tmp_path, gpu(**facts), rule={"address": GPU, "use": "passthrough"}
    )
    assert state.devices == ()
    assert word in look.reasons(state, GPU)


def test_without_iommu_the_reason_names_the_switch(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("iommu-off", tmp_path))
    assert [d.technology for d in state.devices] == ["mdev"]
    assert "intel_iommu=on" in look.reasons(state, "0000:3c:00.0")


def neighbour(driver: str | None, kind: str, **facts: Any) -> dict[str, Any]:
    return {
        "address": "0000:02:00.0",
        "id": "8086:1593",
        "class": kind,
        "driver": driver,
        "group": 1,
        **facts,
    }


@pytest.mark.parametrize(
    ("other", "offered"),
    [
        (neighbour("pcieport", "060400"), True),
        (neighbour(None, "060000"), True),
        (neighbour("vfio-pci", "020000"), True),
        (neighbour(None, "020000"), True),
        (neighbour("ice", "020000"), False),
        (neighbour("shpchp", "060400"), False),
        (neighbour("nvidia", "030200"), False),
        (neighbour("snd", "040300", address="0000:01:00.1"), True),
        (neighbour("ice", "020000", group=2), True),
    ],
)
def test_a_group_goes_only_if_the_host_holds_no_part_of_it(
    tmp_path: pathlib.Path, other: dict[str, Any], offered: bool
) -> None:
    state = card(tmp_path, gpu(), other)
    assert (state.device(GPU) is not None) is offered
    assert (look.reasons(state, GPU) == "") is offered


def test_a_free_neighbour_of_another_kind_stays_out_of_the_guest(
    tmp_path: pathlib.Path,
) -> None:
    state = card(tmp_path, gpu(), neighbour(None, "020000"))
    assert look.device(state, GPU).members == ()


def test_members_of_a_group_that_are_gone_or_unknown(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("broken", tmp_path))
    assert "can't be read" in look.reasons(state, "0000:18:00.0")
    assert "members" in look.reasons(state, "0000:16:00.0")
    assert state.device("0000:18:00.0") is None
    assert state.device("0000:16:00.0") is None


def test_a_display_that_may_be_the_boot_display_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("broken", tmp_path))
    assert state.device("0000:15:00.0") is None


def test_a_card_with_mdevs_is_not_given_away(tmp_path: pathlib.Path) -> None:
    state = look.read(
        look.make("t4-mdev", tmp_path),
        ['{"product_id": "1eb8", "use": "passthrough"}'],
    )
    assert [d.address for d in state.devices] == ["0000:3b:00.0"]
    assert "mdevs exist" in look.reasons(state, "0000:af:00.0")


def test_nothing_is_to_be_made_or_unmade(tmp_path: pathlib.Path) -> None:
    device = look.device(card(tmp_path, gpu()), GPU)
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=GPU,
        profile=device.profiles[0].name,
        slot=GPU,
        parent=GPU,
        handle=GPU,
        technology=device.technology,
    )
    driver = pci_passthrough.PciPassthroughDriver()
    assert driver.plan_prepare(claim) == driver.plan_release(claim) == ()
