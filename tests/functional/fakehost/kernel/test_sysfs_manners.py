# SPDX-License-Identifier: Apache-2.0
"""Files below the simulated /sys behave like the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    A40,
    FPGA,
    new_uuid,
    refused,
    store,
)
from tests.lab.fakehost import Controller

pytestmark = pytest.mark.fakehost


def test_reading_a_write_only_attribute_is_eacces(mtty: Path) -> None:
    with refused(errno.EACCES):
        (mtty / "mtty-1/create").read_text()


def test_writing_a_read_only_attribute_is_eacces(mtty: Path) -> None:
    with refused(errno.EACCES):
        store(mtty / "mtty-1/name", "x")


def test_nothing_can_be_made_or_removed(host: Controller) -> None:
    here = host.sys / "bus/pci"
    with refused(errno.EACCES):
        (here / "new").write_text("x")
    with refused(errno.EPERM):
        (here / "new").mkdir()
    with refused(errno.EPERM):
        (here / "drivers_probe").unlink()
    with refused(errno.EPERM):
        (here / "drivers").rename(here / "other")
    with refused(errno.EPERM):
        (here / "new").symlink_to("devices")


def test_an_open_file_of_a_removed_device_is_enodev(mtty: Path) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    device = mtty.parent / uuid
    handle = os.open(device / "uevent", os.O_RDONLY)
    store(device / "remove", "1")
    with refused(errno.ENODEV):
        os.read(handle, 10)
    os.close(handle)
    with refused(errno.ENOENT):
        (device / "uevent").read_text()


def test_a_removed_device_is_gone_for_every_call(mtty: Path) -> None:
    uuid = new_uuid()
    device = mtty.parent / uuid
    link = mtty / "mtty-1/devices" / uuid
    for _ in range(2):
        assert not os.path.lexists(link)
        store(mtty / "mtty-1/create", uuid)
        assert os.readlink(link)
        assert os.listdir(link)
        assert os.access(device / "uevent", os.R_OK)
        store(device / "remove", "1")
        for path in (link, device, device / "uevent"):
            assert not os.path.lexists(path)
            assert not os.access(path, os.F_OK)
            with refused(errno.ENOENT):
                os.open(path, os.O_RDONLY)
        with refused(errno.ENOENT):
            os.readlink(link)
        with refused(errno.ENOENT):
            os.listdir(device)


def test_seeking_back_reads_again(mtty: Path) -> None:
    handle = os.open(mtty / "mtty-1/available_instances", os.O_RDONLY)
    assert os.read(handle, 10) == b"24\n"
    store(mtty / "mtty-1/create", new_uuid())
    assert os.read(handle, 10) == b""
    os.lseek(handle, 0, os.SEEK_SET)
    assert os.read(handle, 10) == b"23\n"
    os.close(handle)


def test_attributes_of_a_function(host: Controller) -> None:
    card = host.sys / "bus/pci/devices" / A40
    expected = {
        "vendor": "0x10de\n",
        "device": "0x2235\n",
        "subsystem_device": "0x145a\n",
        "class": "0x030200\n",
        "revision": "0xa1\n",
        "numa_node": "1\n",
        "driver_override": "(null)\n",
        "max_link_speed": "16.0 GT/s PCIe\n",
        "sriov_totalvfs": "32\n",
        "sriov_vf_device": "2235\n",
        "uevent": (
            "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2235\n"
            "PCI_SUBSYS_ID=10DE:145A\nPCI_SLOT_NAME=0000:41:00.0\n"
            "MODALIAS=pci:v000010DEd00002235sv000010DEsd0000145A"
            "bc03sc02i00\n"
        ),
    }
    assert {name: (card / name).read_text() for name in expected} == expected
    config = (card / "config").read_bytes()
    assert len(config) == 256
    assert config[:4] == b"\xde\x10\x35\x22"
    with (card / "config").open("rb", buffering=0) as file:
        file.seek(2)
        assert file.read(2) == b"\x35\x22"


def test_a_vf_has_no_ids_in_its_configuration_space(host: Controller) -> None:
    vf = host.sys / "bus/pci/devices/0000:41:00.4"
    assert (vf / "config").read_bytes()[:4] == b"\xff" * 4
    assert (vf / "device").read_text() == "0x2235\n"


def test_unknown_numa_node_is_minus_one(host: Controller) -> None:
    card = host.sys / "bus/pci/devices" / FPGA
    assert (card / "numa_node").read_text() == "-1\n"
    assert not (card / "driver").exists()
    assert not (card / "boot_vga").exists()
