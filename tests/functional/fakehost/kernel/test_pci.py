# SPDX-License-Identifier: Apache-2.0
"""Drivers, IOMMU groups and SR-IOV of the PCI core."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    A40,
    A40_VFS,
    FPGA,
    GIM,
    GPU,
    GPU_AUDIO,
    GPU_GROUP,
    NIC,
    QAT,
    refused,
    store,
)
from tests.lab.fakehost import (
    Controller,
    HostSpec,
    PciCard,
    simulated_sysfs,
)

pytestmark = pytest.mark.fakehost


def driver_of(host: Controller, address: str) -> str:
    link = host.sys / "bus/pci/devices" / address / "driver"
    return link.resolve().name if link.exists() else ""


def write(host: Controller, path: str, text: str) -> None:
    store(host.sys / "bus/pci" / path, text)


def to_vfio(host: Controller, address: str) -> None:
    write(host, f"devices/{address}/driver_override", "vfio-pci\n")
    if driver_of(host, address):
        write(host, f"devices/{address}/driver/unbind", address)
    write(host, "drivers_probe", address)


def test_driver_override_takes_a_card_to_vfio_and_back(
    host: Controller,
) -> None:
    to_vfio(host, NIC)
    assert driver_of(host, NIC) == "vfio-pci"
    group = (host.sys / "bus/pci/devices" / NIC / "iommu_group").resolve()
    assert (host.root / "dev/vfio" / group.name).exists()
    override = f"devices/{NIC}/driver_override"
    write(host, override, "\n")
    text = (host.sys / "bus/pci" / override).read_text()
    assert text == "(null)\n"
    write(host, "drivers/vfio-pci/unbind", NIC)
    assert not (host.root / "dev/vfio" / group.name).exists()
    write(host, "drivers_probe", NIC)
    assert driver_of(host, NIC) == "ice"


def test_bind_and_unbind_errors(host: Controller) -> None:
    with refused(errno.ENODEV):
        write(host, "drivers/ice/bind", "0000:99:00.0")
    with refused(errno.ENODEV):
        write(host, "drivers/ice/bind", FPGA)  # not its ids
    with refused(errno.EBUSY):
        write(host, "drivers/ice/bind", NIC)
    with refused(errno.ENODEV):
        write(host, "drivers/vfio-pci/unbind", NIC)  # not its device
    with refused(errno.ENODEV):
        write(host, "drivers_probe", "0000:99:00.0")
    write(host, f"devices/{NIC}/driver_override", "vfio-pci")
    write(host, "drivers/ice/unbind", NIC)
    with refused(errno.ENODEV):
        write(host, "drivers/ice/bind", NIC)  # override mismatch


def test_new_id(host: Controller) -> None:
    write(host, "drivers/vfio-pci/new_id", "8086 09c4")
    assert driver_of(host, FPGA) == "vfio-pci"
    with refused(errno.EEXIST):
        write(host, "drivers/vfio-pci/new_id", "8086 09c4")
    with refused(errno.EINVAL):
        write(host, "drivers/vfio-pci/new_id", "8086")
    write(host, "drivers/vfio-pci/remove_id", "8086 09c4")
    with refused(errno.ENODEV):
        write(host, "drivers/vfio-pci/remove_id", "8086 09c4")


def test_functions_of_one_group(host: Controller) -> None:
    group = host.sys / f"kernel/iommu_groups/{GPU_GROUP}"
    assert sorted(os.listdir(group / "devices")) == [GPU, GPU_AUDIO]
    assert (group / "type").read_text() == "DMA-FQ\n"
    card = host.sys / "bus/pci/devices" / GPU
    assert (card / "boot_vga").read_text() == "1\n"
    assert (card / "config").read_bytes()[14] == 0x80


def test_a_native_driver_is_refused_in_a_group_a_guest_holds(
    host: Controller,
) -> None:
    to_vfio(host, GPU)
    write(host, "drivers/snd_hda_intel/unbind", GPU_AUDIO)
    guest = os.open(host.root / f"dev/vfio/{GPU_GROUP}", os.O_RDONLY)
    fcntl.flock(guest, fcntl.LOCK_EX)
    assert host.functions()[GPU]["in_use"]
    with refused(errno.EBUSY):
        write(host, "drivers/snd_hda_intel/bind", GPU_AUDIO)
    os.close(guest)
    write(host, "drivers/snd_hda_intel/bind", GPU_AUDIO)


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1 2"])
def test_numvfs_not_a_u16_is_einval(host: Controller, text: str) -> None:
    with refused(errno.EINVAL):
        write(host, f"devices/{NIC}/sriov_numvfs", text + "\n")


def test_numvfs_errors_in_the_kernels_order(host: Controller) -> None:
    numvfs = f"devices/{NIC}/sriov_numvfs"
    with refused(errno.ERANGE):
        write(host, numvfs, "9")
    write(host, numvfs, "0")  # no change: success
    write(host, numvfs, "2")
    write(host, numvfs, "2")
    with refused(errno.EBUSY):
        write(host, numvfs, "3")
    write(host, "drivers/ice/unbind", NIC)
    with refused(errno.ENOENT):
        write(host, numvfs, "0")  # no driver


def test_numvfs_makes_vfs_with_links_drivers_and_groups(
    host: Controller,
) -> None:
    before = host.uevents()[-1]["seqnum"]
    write(host, f"devices/{NIC}/sriov_numvfs", "2")
    card = host.sys / "bus/pci/devices" / NIC
    assert (card / "sriov_numvfs").read_text() == "2\n"
    vf = (card / "virtfn1").resolve()
    assert vf.name == "0000:51:01.1"  # offset 8
    assert (vf / "physfn").resolve() == card.resolve()
    assert (vf / "device").read_text() == "0x1889\n"
    assert (vf / "driver").resolve().name == "iavf"
    assert os.listdir((vf / "iommu_group").resolve() / "devices") == [vf.name]
    seen = [
        (event["action"], event["properties"]["PCI_SLOT_NAME"])
        for event in host.uevents(before)
    ]
    first, second = "0000:51:01.0", "0000:51:01.1"
    assert seen == [
        *((action, first) for action in ("add", "change", "bind")),
        *((action, second) for action in ("add", "change", "bind")),
        ("change", NIC),
    ]


def test_autoprobe_off_leaves_vfs_unbound_and_zero_removes_them(
    host: Controller,
) -> None:
    write(host, f"devices/{NIC}/sriov_drivers_autoprobe", "0")
    write(host, f"devices/{NIC}/sriov_numvfs", "1")
    assert driver_of(host, "0000:51:01.0") == ""
    write(host, f"devices/{NIC}/sriov_numvfs", "0")
    assert not (host.sys / "bus/pci/devices/0000:51:01.0").exists()
    assert not (host.sys / "bus/pci/devices" / NIC / "virtfn0").exists()


def test_nvidia_itself_cannot_enable_vfs(host: Controller) -> None:
    with refused(errno.ENOENT):
        write(host, f"devices/{A40}/sriov_numvfs", "0")


def test_vfs_of_an_nvidia_card_come_through_pf_stub(
    host: Controller,
) -> None:
    host.set_vfs(A40, 0)
    assert not any(
        v in os.listdir(host.sys / "bus/pci/devices") for v in A40_VFS
    )
    write(host, "drivers/nvidia/unbind", A40)
    write(host, "drivers/pci-pf-stub/new_id", "10de 2235")
    assert driver_of(host, A40) == "pci-pf-stub"
    write(host, f"devices/{A40}/sriov_numvfs", "32")
    parents = host.sys / "class/mdev_bus"
    assert A40_VFS[0] not in os.listdir(parents)  # the PF's driver is away
    write(host, "drivers/pci-pf-stub/unbind", A40)
    write(host, "drivers/nvidia/bind", A40)
    assert (host.sys / "bus/pci/devices/0000:41:04.3").exists()
    on_a40 = [n for n in os.listdir(parents) if n.startswith("0000:41")]
    assert len(on_a40) == 32


def test_unplug_takes_the_vfs_too(host: Controller) -> None:
    host.unplug(A40)
    functions = os.listdir(host.sys / "bus/pci/devices")
    assert not {A40, *A40_VFS} & set(functions)


def test_without_iommu_there_are_no_groups_and_no_vfio(
    tmp_path: Path, host: Controller
) -> None:
    card = PciCard(
        address=FPGA, vendor=0x8086, device=0x09C4, class_code=0x120000
    )
    spec = HostSpec(cards=(card,), iommu=False)
    with simulated_sysfs(spec, tmp_path) as bare:
        assert os.listdir(bare.sys / "kernel/iommu_groups") == []
        device = bare.sys / "bus/pci/devices" / FPGA
        assert not (device / "iommu_group").exists()
        write(bare, f"devices/{FPGA}/driver_override", "vfio-pci")
        with refused(errno.EINVAL):
            write(bare, "drivers/vfio-pci/bind", FPGA)


def test_a_card_makes_the_vfs_it_likes(gpus: Controller) -> None:
    numvfs = f"devices/{QAT}/sriov_numvfs"
    write(gpus, numvfs, "3")
    assert (gpus.sys / "bus/pci" / numvfs).read_text() == "16\n"
    with refused(errno.EBUSY):
        write(gpus, numvfs, "3")
    write(gpus, numvfs, "0")
    assert (gpus.sys / "bus/pci" / numvfs).read_text() == "0\n"


def test_a_driver_without_sriov_configure_is_enoent(
    gpus: Controller,
) -> None:
    numvfs = f"devices/{GIM}/sriov_numvfs"
    assert (gpus.sys / "bus/pci" / numvfs).read_text() == "1\n"
    for number in ("0", "2"):
        with refused(errno.ENOENT):
            write(gpus, numvfs, number)
    write(gpus, numvfs, "1")  # what it is already
    with refused(errno.ERANGE):
        write(gpus, numvfs, "9")


def test_the_bus_of_one_of_two_functions_is_not_reset(
    tmp_path: Path,
) -> None:
    """The kernel found the method before it found the second function."""
    port, names = "0000:70:01.0", ("0000:71:00.0", "0000:71:00.1")
    cards = tuple(
        PciCard(
            address=name,
            vendor=0x10DE,
            device=0x2C34,
            class_code=0x030000,
            port=port,
            reset_methods=methods,
        )
        for name, methods in zip(names, (("bus",), ()), strict=True)
    )
    with simulated_sysfs(HostSpec(cards=cards), tmp_path) as host:
        first, second = (host.sys / "bus/pci/devices" / n for n in names)
        assert (first / "reset_method").read_text() == "bus\n"
        assert not (second / "reset_method").exists()
        assert not (second / "reset").exists()
        with refused(errno.ENOTTY):
            write(host, f"devices/{names[0]}/reset", "1")
        assert driver_of(host, port) == "pcieport"
        assert first.resolve().parent.name == port
        host.die_at_reset(names[1])
        write(host, f"devices/{port}/reset_subordinate", "1")
        assert (second / "config").read_bytes()[:2] == b"\xff\xff"
        assert (first / "config").read_bytes()[:2] == b"\xde\x10"
        host.unplug(names[1])
        write(host, f"devices/{names[0]}/reset", "1")
