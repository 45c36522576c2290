# SPDX-License-Identifier: Apache-2.0
"""The simulated mdev core returns the errno of the kernel's."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    new_uuid,
    number,
    refused,
    store,
)
from tests.lab.fakehost import Controller

pytestmark = pytest.mark.fakehost


def test_parent_is_listed(host: Controller, mtty: Path) -> None:
    listed = host.sys / "class/mdev_bus/mtty"
    assert listed.is_symlink()
    assert listed.resolve() == mtty.parent
    assert sorted(os.listdir(mtty)) == ["mtty-1", "mtty-2"]


def test_type_directory_has_the_files_of_the_abi(mtty: Path) -> None:
    kind = mtty / "mtty-2"
    # the sample has no show_description: there is no such file
    assert sorted(os.listdir(kind)) == [
        "available_instances",
        "create",
        "device_api",
        "devices",
        "name",
    ]
    assert (kind / "device_api").read_text() == "vfio-pci\n"
    assert (kind / "name").read_text() == "Dual port serial\n"
    assert (kind / "available_instances").read_text() == "12\n"


def test_create_makes_the_device_and_its_links(
    host: Controller, mtty: Path
) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-2/create", uuid + "\n")
    device = mtty.parent / uuid
    assert (host.sys / "bus/mdev/devices" / uuid).resolve() == device
    assert (device / "mdev_type").resolve() == mtty / "mtty-2"
    assert (device / "driver").resolve().name == "mtty"
    assert (device / "subsystem").resolve() == host.sys / "bus/mdev"
    assert (mtty / "mtty-2/devices" / uuid).resolve() == device
    group = (device / "iommu_group").resolve()
    assert os.listdir(group / "devices") == [uuid]
    assert (host.root / "dev/vfio" / group.name).exists()
    assert (device / "uevent").read_text() == "DRIVER=mtty\n"


def test_ports_are_shared_and_come_back(mtty: Path) -> None:
    files = [mtty / f"mtty-{n}/available_instances" for n in (1, 2)]
    uuid = new_uuid()
    assert [number(p) for p in files] == [24, 12]
    store(mtty / "mtty-1/create", uuid)
    assert [number(p) for p in files] == [23, 11]
    store(mtty.parent / uuid / "remove", "1")
    assert [number(p) for p in files] == [24, 12]


def test_create_without_ports_left_is_enospc(
    host: Controller, mtty: Path
) -> None:
    for _ in range(12):
        store(mtty / "mtty-2/create", new_uuid())
    before = host.uevents()[-1]["seqnum"]
    uuid = new_uuid()
    with refused(errno.ENOSPC):
        store(mtty / "mtty-1/create", uuid)
    assert not (mtty.parent / uuid).exists()
    # the core adds the device before its driver refuses it
    assert [e["action"] for e in host.uevents(before)] == ["add", "remove"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no-uuid",
        "83b8f4f2509f382f3c1ee6bfe0fa1001",
        "{83b8f4f2-509f-382f-3c1e-e6bfe0fa10}",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa100g",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001\n\n",
        "83b8f4f25-09f-382f-3c1e-e6bfe0fa1001",
    ],
)
def test_create_without_a_uuid_is_einval(mtty: Path, text: str) -> None:
    with refused(errno.EINVAL):
        handle = os.open(mtty / "mtty-1/create", os.O_WRONLY)
        try:
            # write(2) of nothing does not reach the kernel's store
            os.write(handle, text.encode() or b"\n")
        finally:
            os.close(handle)


def test_create_lowers_the_case(mtty: Path) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid.upper())
    assert (mtty.parent / uuid).is_dir()


@pytest.mark.parametrize("text", ["", "x", "-1", "1 1", "0x"])
def test_remove_without_a_number_is_einval(mtty: Path, text: str) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    with refused(errno.EINVAL):
        store(mtty.parent / uuid / "remove", text + "\n")


def test_remove_with_zero_does_nothing(mtty: Path) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    store(mtty.parent / uuid / "remove", "0")
    assert (mtty.parent / uuid).exists()


def test_remove_through_an_old_handle_is_enodev(mtty: Path) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    handle = os.open(mtty.parent / uuid / "remove", os.O_WRONLY)
    store(mtty.parent / uuid / "remove", "1")
    with refused(errno.ENODEV):
        os.write(handle, b"1")
    os.close(handle)
    assert not (mtty.parent / uuid).exists()


def test_remove_waits_while_a_guest_holds_the_device(
    host: Controller, mtty: Path
) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    group = (mtty.parent / uuid / "iommu_group").resolve().name
    guest = os.open(host.root / "dev/vfio" / group, os.O_RDONLY)
    fcntl.flock(guest, fcntl.LOCK_EX)
    assert host.mdevs()[uuid]["in_use"]
    remove = mtty.parent / uuid / "remove"
    writer = threading.Thread(target=store, args=(remove, "1"))
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    # it is in no list any more, and its slot is not free yet
    assert not (host.sys / "bus/mdev/devices" / uuid).exists()
    assert (mtty.parent / uuid).exists()
    assert number(mtty / "mtty-1/available_instances") == 23
    os.close(guest)
    writer.join(5)
    assert not writer.is_alive()
    assert not (mtty.parent / uuid).exists()
    assert number(mtty / "mtty-1/available_instances") == 24


def test_remove_in_use_is_ebusy_with_an_older_driver(
    host: Controller,
) -> None:
    parent = host.sys / "class/mdev_bus/0000:3c:00.0"
    uuid = new_uuid()
    store(parent / "mdev_supported_types/nvidia-230/create", uuid)
    group = (parent / uuid / "iommu_group").resolve().name
    guest = os.open(host.root / "dev/vfio" / group, os.O_RDONLY)
    fcntl.flock(guest, fcntl.LOCK_EX)
    with refused(errno.EBUSY):
        store(parent / uuid / "remove", "1")
    os.close(guest)
    store(parent / uuid / "remove", "1")
    assert not (parent / uuid).exists()


def test_a_parent_the_core_counts_is_eusers_when_full(
    host: Controller,
) -> None:
    matrix = host.sys / "class/mdev_bus/matrix"
    kind = matrix / "mdev_supported_types/vfio_ap-passthrough"
    assert (kind / "device_api").read_text() == "vfio-ap\n"
    uuids = [new_uuid(), new_uuid()]
    for uuid in uuids:
        store(kind / "create", uuid)
    assert number(kind / "available_instances") == 0
    with refused(errno.EUSERS):
        store(kind / "create", new_uuid())
    with refused(errno.EEXIST):
        store(kind / "create", uuids[0])
    store(matrix / uuids[0] / "remove", "1")
    assert number(kind / "available_instances") == 1


def test_events_come_in_the_kernels_order(
    host: Controller, mtty: Path
) -> None:
    before = host.uevents()[-1]["seqnum"]
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    store(mtty.parent / uuid / "remove", "1")
    seen = [
        (event["subsystem"], event["action"]) for event in host.uevents(before)
    ]
    assert seen == [
        ("mdev", "add"),
        ("vfio-dev", "add"),
        ("mdev", "bind"),
        ("vfio-dev", "remove"),
        ("mdev", "unbind"),
        ("mdev", "remove"),
    ]


def test_a_hundred_creates_and_removes_are_quick(mtty: Path) -> None:
    start = time.monotonic()
    for _ in range(100):
        uuid = new_uuid()
        store(mtty / "mtty-1/create", uuid)
        store(mtty.parent / uuid / "remove", "1")
    assert time.monotonic() - start < 5
