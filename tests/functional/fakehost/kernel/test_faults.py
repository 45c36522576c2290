# SPDX-License-Identifier: Apache-2.0
"""Faults can be injected into the simulated kernel."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    T4,
    new_uuid,
    number,
    refused,
    store,
)
from tests.lab.fakehost import Controller, FakehostError

pytestmark = pytest.mark.fakehost

CREATE = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create"


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "ENODEV", "EPERM"])
def test_a_write_fails_with_the_errno_asked_for(
    host: Controller, mtty: Path, name: str
) -> None:
    host.fail(CREATE, name)
    with refused(getattr(errno, name)):
        store(mtty / "mtty-1/create", new_uuid())
    store(mtty / "mtty-2/create", new_uuid())
    assert host.heal(CREATE) == 1
    store(mtty / "mtty-1/create", new_uuid())


def test_times(host: Controller, mtty: Path) -> None:
    host.fail(CREATE, "EAGAIN", times=2)
    for _ in range(2):
        with refused(errno.EAGAIN):
            store(mtty / "mtty-1/create", new_uuid())
    store(mtty / "mtty-1/create", new_uuid())


def test_a_read_fails_at_read_not_at_open(
    host: Controller, mtty: Path
) -> None:
    host.fail("/sys/devices/*/mtty-2/name", "EIO", on="read")
    handle = os.open(mtty / "mtty-2/name", os.O_RDONLY)
    with refused(errno.EIO):
        os.read(handle, 100)
    os.close(handle)
    assert (mtty / "mtty-1/name").read_text() == "Single port serial\n"


def test_open_and_list_fail(host: Controller, mtty: Path) -> None:
    host.fail("/sys/class/mdev_bus/mtty/uevent", "EACCES", on="open")
    host.fail("/sys/class/mdev_bus", "EIO", on="list")
    with refused(errno.EACCES):
        (mtty.parent / "uevent").read_text()
    with refused(errno.EIO):
        os.listdir(host.sys / "class/mdev_bus")


def test_a_type_vanishes_while_it_is_being_read(
    host: Controller, mtty: Path
) -> None:
    kind = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-2"
    host.vanish(kind, when=kind, on="list")
    names = os.listdir(mtty / "mtty-2")
    assert "name" in names
    with refused(errno.ENOENT):
        (mtty / "mtty-2/name").read_text()
    assert os.listdir(mtty) == ["mtty-1"]


def test_a_type_vanishes_under_an_open_file(
    host: Controller, mtty: Path
) -> None:
    kind = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-2"
    host.vanish(kind, when=f"{kind}/name")
    with refused(errno.ENODEV):
        (mtty / "mtty-2/name").read_text()
    with refused(errno.ENOENT):
        (mtty / "mtty-2/name").read_text()


def test_vanish_at_once_and_reboot(host: Controller, mtty: Path) -> None:
    host.vanish("/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1")
    assert os.listdir(mtty) == ["mtty-2"]
    host.reboot()
    assert sorted(os.listdir(mtty)) == ["mtty-1", "mtty-2"]


def test_a_write_hangs_until_healed_and_others_go_on(
    host: Controller, mtty: Path
) -> None:
    host.hang(CREATE)
    uuid = new_uuid()
    writer = threading.Thread(
        target=store, args=(mtty / "mtty-1/create", uuid)
    )
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    assert not (mtty.parent / uuid).exists()
    assert number(mtty / "mtty-1/available_instances") == 24
    store(mtty / "mtty-2/create", new_uuid())
    host.heal()
    writer.join(5)
    assert (mtty.parent / uuid).exists()


def test_a_write_hangs_for_a_while_then_fails(
    host: Controller, mtty: Path
) -> None:
    host.hang(CREATE, seconds=0.3, code="EIO")
    start = time.monotonic()
    with refused(errno.EIO):
        store(mtty / "mtty-1/create", new_uuid())
    assert 0.3 <= time.monotonic() - start < 3


def test_writes_are_on_record(host: Controller, mtty: Path) -> None:
    uuid = new_uuid()
    store(mtty / "mtty-1/create", uuid)
    with refused(errno.EEXIST):
        store(mtty / "mtty-1/create", uuid)
    path = "/devices/virtual/mtty/mtty/mdev_supported_types/mtty-1/create"
    assert host.writes() == [
        {"path": path, "data": uuid, "errno": 0},
        {"path": path, "data": uuid, "errno": errno.EEXIST},
    ]


def test_reads_are_counted(host: Controller, mtty: Path) -> None:
    before = host.reads()
    (mtty / "mtty-1/name").read_text()
    assert host.reads() == before + 1


def test_wrong_commands_say_what_is_known(host: Controller) -> None:
    with pytest.raises(FakehostError, match="ENOWHERE"):
        host.fail(CREATE, "ENOWHERE")
    with pytest.raises(FakehostError, match="open, read, write, list"):
        host.fail(CREATE, "EIO", on="mmap")
    with pytest.raises(FakehostError, match=T4):
        host.unplug("0000:99:00.0")
