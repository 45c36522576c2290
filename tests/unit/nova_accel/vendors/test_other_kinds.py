# SPDX-License-Identifier: Apache-2.0
"""Proves which devices other than GPUs are passed through."""

import json
import pathlib
import re
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters import request
from nova_accel.catalog import pci_ids
from nova_accel.model import names, pci
from tests.hosts import build, look
from tests.support import examples


def passthrough_line(address: str) -> str:
    return json.dumps({"address": address, "use": "passthrough"})


def function(vendor: str, product: str, code: int = 0) -> pci.PciFunction:
    return pci.PciFunction(
        address=pci.parse_address("0000:01:00.0"),
        vendor=vendor,
        product=product,
        class_code=code,
    )


def test_bound_devices_are_offered_on_request(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("kinds", tmp_path)
    for address, resource_class in (
        ("0000:19:00.0", "CUSTOM_GAUDI"),
        ("0000:81:00.0", "CUSTOM_ASCEND"),
        ("0000:6f:01.0", "CUSTOM_DSA"),
        ("0000:90:00.0", "CUSTOM_PCI_1234_5678"),
    ):
        assert look.read(root).device(address) is None
        device = look.device(
            look.read(root, [passthrough_line(address)]), address
        )
        assert device.counters == {resource_class: 1}
        assert device.fault == ""


@pytest.mark.parametrize("address", ["0000:1a:00.0", "0000:1c:00.0"])
def test_an_accelerator_that_is_not_operational_is_set_aside(
    tmp_path: pathlib.Path, address: str
) -> None:
    root = look.make("kinds", tmp_path)
    device = look.device(look.read(root, [passthrough_line(address)]), address)
    assert "reset" in device.fault.lower()
    assert device.counters == {"CUSTOM_GAUDI": 1}


def test_work_queues_of_the_host_are_not_taken_away(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("kinds", tmp_path)
    state = look.read(root, [passthrough_line("0000:6a:01.0")])
    assert state.device("0000:6a:01.0") is None
    reasons = look.reasons(state, "0000:6a:01.0")
    assert "dsa0/wq0.0 is enabled" in reasons
    assert "accel-config" in reasons


def test_a_disk_is_offered_only_where_it_is_named(
    tmp_path: pathlib.Path,
) -> None:
    """The next guest could read the data of the last one."""
    root = look.make("nvme", tmp_path)
    state = look.read(root)
    assert not [d for d in state.devices if d.technology == "passthrough"]
    named = [f"0000:{bus}:00.0" for bus in (62, 63, 68)]
    state = look.read(root, map(passthrough_line, named))
    (whole,) = (d for d in state.devices if d.technology == "passthrough")
    assert whole.address == "0000:62:00.0"
    assert whole.counters == {"CUSTOM_NVME": 1}
    assert "reset_method" in look.reasons(state, "0000:63:00.0")
    # The host's network is on the same card.
    assert "ice" in look.reasons(state, "0000:68:00.0")


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("0000:64:00.0", "has partitions"),
        ("0000:65:00.0", "dm-0 is made of nvme1n1"),
        ("0000:66:00.0", ""),
        ("0000:67:00.0", "is mounted"),
    ],
)
def test_a_disk_with_data_of_the_hosts_is_refused(
    tmp_path: pathlib.Path, address: str, word: str
) -> None:
    root = look.make("nvme", tmp_path)
    state = look.read(root, [passthrough_line(address)])
    assert (state.device(address) is None) is bool(word)
    assert word in look.reasons(state, address)
    # A line with ids matches all disks of that model.
    by_ids = {"vendor_id": "8086", "product_id": "0a54", "use": "passthrough"}
    state = look.read(root, [json.dumps(by_ids)])
    assert (state.device(address) is None) is bool(word)


def test_a_disk_in_btrfs_is_mounted(tmp_path: pathlib.Path) -> None:
    root = look.make("nvme", tmp_path)
    uuid = "0f5a8b9e-8f0d-4d0f-9d3b-0d1c6a3c1f11"
    build.break_path(root, f"fs/btrfs/{uuid}/devices/nvme5n1/size", "8\n")
    build.break_path(root, "fs/btrfs/features/skinny_metadata", "1\n")
    state = look.read(root, [passthrough_line("0000:66:00.0")])
    assert "is mounted" in look.reasons(state, "0000:66:00.0")


def test_a_disk_of_unknown_use_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("nvme", tmp_path)
    place = "bus/pci/devices/0000:66:00.0/nvme"
    build.break_path(root, place, {"fault": "circle"})
    state = look.read(root, [passthrough_line("0000:66:00.0")])
    assert state.device("0000:66:00.0") is None
    assert "can't be read" in look.reasons(state, "0000:66:00.0")


@pytest.mark.parametrize(
    ("driver", "denylist", "offered"),
    [("idxd", "N", False), ("idxd", "Y", True), ("vfio-pci", "N", True)],
)
def test_what_vfio_pci_refuses_is_not_offered(
    tmp_path: pathlib.Path, driver: str, denylist: str, offered: bool
) -> None:
    address = "0000:6a:01.0"
    card = {
        "address": address,
        "id": "8086:0b25",
        "class": "088000",
        "driver": driver,
        "group": 1,
    }
    place = "module/vfio_pci/parameters/disable_denylist"
    faults = [{"path": place, "is": f"{denylist}\n"}]
    build.build({"functions": [card], "faults": faults}, tmp_path)
    state = look.read(tmp_path, [passthrough_line(address)])
    assert bool(state.devices) is offered
    reasons = look.reasons(state, address)
    assert ("disable_denylist" in reasons) is not offered


def test_kinds_are_found_by_ids_or_class() -> None:
    assert pci_ids.find(function("144d", "a824", 0x010802)) is (pci_ids.NVME)
    assert pci_ids.find(function("144d", "a824", 0x010601)) is None
    assert pci_ids.find(function("1da3", "ffff", 0x120000)) is None
    assert pci_ids.find_model(function("1ae0", "0027")) == "TPU v3"
    assert pci_ids.find_model(function("10de", "0027")) == ""
    assert pci_ids.find_qat(function("8086", "37c8")) is not None
    assert pci_ids.find_qat(function("8086", "37c9")) is None
    assert pci_ids.is_qat(function("8086", "37c9"))
    assert not pci_ids.is_qat(function("10de", "37c9"))


def test_each_class_of_the_catalog_requests_an_accelerator() -> None:
    assert pci_ids.CLASSES == {
        names.QAT_VF_CLASS,
        "CUSTOM_ASCEND",
        "CUSTOM_DSA",
        "CUSTOM_GAUDI",
        "CUSTOM_GOYA",
        "CUSTOM_IAA",
        "CUSTOM_NVME",
        "CUSTOM_NVME_VF",
        "CUSTOM_TPU",
    }
    for name in (*pci_ids.CLASSES, "CUSTOM_PCI_8086_1592_VF"):
        assert re.fullmatch(r"CUSTOM_[A-Z0-9_]{1,248}", name)
        parsed = request.parse_request({f"resources:{name}": "1"})
        assert parsed.classes == {name}
    others = request.parse_request({"resources:CUSTOM_GOLD": "1"})
    assert others is request.NO_ACCELERATORS


PLACES = st.sampled_from(
    [
        "bus/pci/devices/0000:6a:01.0/dsa0/wq0.0/state",
        "bus/pci/devices/0000:1a:00.0/status",
        "bus/pci/devices/0000:19:00.0/driver",
        "bus/pci/devices/0000:83:00.0/iommu_group",
        "module/vfio_pci/parameters/disable_denylist",
    ]
)
FAULTS: st.SearchStrategy[str | dict[str, str]] = st.sampled_from(
    [
        "",
        "garbage\n",
        *({"fault": f} for f in ("EIO", "dangling", "missing", "junk")),
    ]
)


@given(faults=st.lists(st.tuples(PLACES, FAULTS), max_size=3))
@settings(max_examples=examples.examples(12), deadline=None)
def test_no_broken_file_ends_a_driver(faults: list[tuple[str, Any]]) -> None:
    rule = json.dumps({"address": "*:*", "use": "passthrough"})
    with tempfile.TemporaryDirectory() as top:
        root = look.make("kinds", pathlib.Path(top))
        for place, fault in faults:
            build.break_path(root, place, fault)
        state = look.read(root, [rule])
    assert not [p for p in state.problems if p.where.startswith("driver ")]


def test_a_queue_whose_state_cant_be_read_may_be_at_work(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("kinds", tmp_path)
    place = "bus/pci/devices/0000:6f:01.0/dsa2/wq2.0/state"
    build.break_path(root, place, {"fault": "EIO"})
    state = look.read(root, [passthrough_line("0000:6f:01.0")])
    assert "dsa2/wq2.0" in look.reasons(state, "0000:6f:01.0")
