# SPDX-License-Identifier: Apache-2.0
"""Privileged functions verify a bitstream before its load."""

import errno
import fcntl
import hashlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nova_accel import errors
from nova_accel.catalog.fpga import bitstreams, gbs
from nova_accel.host.execute import privileged
from nova_accel.host.execute.technologies import fpga_privileged
from nova_accel.host.fpga import bitstream_payload, ioctls
from nova_accel.model import actions

pytestmark = pytest.mark.usefixtures("own_rights")
CARD = "0000:5e:00.0"
NODE = "dfl-fme.0"
CONTENT = b"what the FPGA takes"


def digest(content: bytes) -> str:
    return hashlib.sha512(content).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "images/one.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A plain file, which has no ioctl, at the path of the card's device."""
    path = tmp_path / "dev" / NODE
    path.parent.mkdir()
    path.touch()
    return path


def program(root: Path, file: Path | str, sha512: str = "") -> int:
    sha512 = sha512 or digest(CONTENT)
    return fpga_privileged.program_port(
        str(root), NODE, 0, str(file), sha512, 5
    )


def run(root: Path, file: Path) -> int:
    sha512 = digest(CONTENT)
    return fpga_privileged.run_fpga_tool(
        str(root), "fpgaconf", CARD, str(file), sha512, 5
    )


# -- the kernel's own interface --------------------------------------------


def test_ioctl_numbers_are_those_of_the_kernels_header() -> None:
    """_IO(0xB6, 0x80), _IOW(0xB6, 0x81, int) and _IOW(0xB6, 0x82, int)."""
    assert ioctls.PORT_PR == 0x0000B680
    assert ioctls.PORT_RELEASE == 0x4004B681
    assert ioctls.PORT_ASSIGN == 0x4004B682
    assert struct.calcsize("i") == 4


def test_the_ioctls_reach_the_kernel(
    tmp_path: Path, node: Path, file: Path
) -> None:
    """For a plain file the kernel returns ENOTTY."""
    assert program(tmp_path, file) == errno.ENOTTY
    for is_released in (True, False):
        number = fpga_privileged.set_port(str(tmp_path), NODE, 0, is_released)
        assert number == errno.ENOTTY


def test_a_missing_device_is_enoent(tmp_path: Path, file: Path) -> None:
    assert program(tmp_path, file) == errno.ENOENT
    assert (
        fpga_privileged.set_port(str(tmp_path), NODE, 0, True) == errno.ENOENT
    )


def test_a_symlink_is_no_device(
    tmp_path: Path, node: Path, file: Path
) -> None:
    node.rename(node.with_name("other"))
    node.symlink_to("other")
    assert program(tmp_path, file) == errno.ELOOP


@pytest.mark.parametrize("is_tool", [False, True])
def test_a_file_that_fails_a_check_is_not_loaded(
    tmp_path: Path, node: Path, file: Path, is_tool: bool
) -> None:
    loads: Callable[[Path, Path], int] = run if is_tool else program
    tool = tmp_path / "usr/bin/fpgaconf"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    tool.chmod(0o755)
    file.write_bytes(CONTENT[:-1])
    assert loads(tmp_path, file) == errno.EBADMSG
    file.write_bytes(CONTENT)
    link = file.with_name("link")
    link.symlink_to(file)
    assert loads(tmp_path, link) == errno.ELOOP
    assert loads(tmp_path, file.with_name("none")) == errno.ENOENT
    assert loads(tmp_path, file.parent) in (errno.EISDIR, errno.EINVAL)
    fifo = file.with_name("fifo")
    os.mkfifo(fifo)
    assert loads(tmp_path, fifo) == errno.EINVAL
    with file.open("r+b") as opened:
        opened.truncate(bitstream_payload.MOST_BYTES + 1)
    assert loads(tmp_path, file) == errno.EFBIG
    assert not (tmp_path / "ran").exists()


def test_the_payload_excludes_intels_header(file: Path) -> None:
    for content in (CONTENT, gbs.MAGIC + b"\x02\x00\x00\x00{}" + CONTENT):
        file.write_bytes(content)
        payload = bitstream_payload.read_payload(str(file), digest(content))
        assert payload == bytes(bitstreams.extract_payload(content)) == CONTENT


def test_a_truncated_header_is_einval(
    tmp_path: Path, node: Path, file: Path
) -> None:
    content = gbs.MAGIC + b"\xff\xff"
    file.write_bytes(content)
    assert program(tmp_path, file, digest(content)) == errno.EINVAL


@pytest.fixture
def hanging(node: Path) -> Iterator[int]:
    """Take a lease: each open of the device hangs in the kernel."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(node, os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield descriptor
    os.close(descriptor)
    signal.signal(signal.SIGIO, before)


def test_a_hanging_call_is_not_repeated(
    tmp_path: Path, node: Path, hanging: int
) -> None:
    path = str(node)
    start = time.monotonic()
    assert ioctls.program(path, 0, CONTENT, 0.2) == errno.ETIMEDOUT
    assert time.monotonic() - start < 5
    # There is no second call while the first one is pending.
    assert ioctls.program(path, 0, CONTENT, 0.2) == errno.EBUSY
    fcntl.fcntl(hanging, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    for thread in threading.enumerate():
        if thread.name == f"program {path}":
            assert thread.daemon
            thread.join(10)
    assert ioctls.program(path, 0, CONTENT, 5) == errno.ENOTTY


GOOD = (NODE, 0, "/images/one", "0" * 128, 5)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "dfl-port.0"),
        (0, "dfl-fme.0/../mem"),
        (0, "../dev/dfl-fme.0"),
        (0, "dfl-fme.0\n"),
        (0, ""),
        (1, -1),
        (1, "0"),
        (1, None),
        (1, 1 << 16),
        (2, "images/one"),
        (2, ""),
        (2, "/images/\0one"),
        (2, None),
        (3, "0" * 127),
        (3, "A" * 128),
        (3, ""),
        (4, 0),
        (4, -1),
        (4, "5"),
        (4, float("nan")),
        (4, actions.MAX_PROGRAM_S + 1),
    ],
)
def test_malformed_arguments_are_refused(
    tmp_path: Path, place: int, value: object
) -> None:
    root = str(tmp_path)
    wrong: list[Any] = list(GOOD)
    wrong[place] = value
    with pytest.raises(errors.MalformedError):
        fpga_privileged.program_port(root, *wrong)
    with pytest.raises(errors.MalformedError):
        if place < 2:
            fpga_privileged.set_port(root, wrong[0], wrong[1], True)
        else:
            fpga_privileged.run_fpga_tool(root, "fpgaconf", CARD, *wrong[2:])


# -- services of QAT devices -----------------------------------------------


def qat(root: Path, state: str) -> Path:
    place = root / "sys/bus/pci/devices" / CARD / "qat"
    place.mkdir(parents=True)
    (place / "state").write_text(f"{state}\n")
    (place / "cfg_services").write_text("sym;asym\n")
    return place


def test_services_are_set_while_the_device_is_down(
    tmp_path: Path,
) -> None:
    place = qat(tmp_path, "down")
    assert privileged.set_services(str(tmp_path), CARD, "dc") == 0
    assert (place / "cfg_services").read_text().startswith("dc")
    assert (place / "state").read_text().startswith("up")


def test_a_device_is_up_again_after_refused_services(
    tmp_path: Path,
) -> None:
    place = qat(tmp_path, "up")
    (place / "cfg_services").unlink()
    (place / "cfg_services").mkdir()
    number = privileged.set_services(str(tmp_path), CARD, "dc")
    assert number == errno.EISDIR
    assert (place / "state").read_text().startswith("up")


def test_a_device_without_services_is_enoent(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert privileged.set_services(root, CARD, "dc") == errno.ENOENT
    for words in ("", "dc\n", "DC", "dc;", "a b", "../x"):
        with pytest.raises(errors.MalformedError):
            privileged.set_services(root, CARD, words)
