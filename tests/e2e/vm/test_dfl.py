# SPDX-License-Identifier: Apache-2.0
"""The kernel's FPGA drivers on the lab's card, used from out here.

The device is the machine's, the ioctl is made on this side of its wall.
"""

import errno
import pathlib
import sys
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.support.vm_site import (
    Domain,
    inside,
    pci_hostdev,
    remote,
    wait_for,
)
from tests.e2e.vm import MARKS
from tests.lab.vm import topology

pytestmark = MARKS

CARD = f"/sys/bus/pci/devices/{topology.PAC_ADDRESS}"
PORT = f"{CARD}/fpga_region/region*/dfl-port.*"
COMPAT_ID = f"{CARD}/fpga_region/region*/dfl-fme.*/*/fpga_region/*/compat_id"
LIB = '. "$LAB_GUEST/lib.sh"'
REBIND = f"""
cd /sys/bus/pci/drivers/dfl-pci &&
echo {topology.PAC_ADDRESS} > unbind && echo {topology.PAC_ADDRESS} > bind
"""
#: The kernel waits so long for the card (PR_WAIT_TIMEOUT of
#: drivers/fpga/dfl-fme-mgr.c, in seconds).
PATIENCE_S = 8

#: Makes one of the ioctls of linux/fpga-dfl.h; prints its errno's name or
#: nothing, and the seconds that it took.
IOCTL = """
import ctypes, errno, fcntl, os, struct, sys, time
request, head, size = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3]
data = ctypes.create_string_buffer(head, int(size))
argument = head
if request == 0xB680:
    where = ctypes.addressof(data)
    argument = struct.pack("=IIIIQ", 24, 0, 0, len(data), where)
fd = os.open("/dev/dfl-fme.0", os.O_RDWR | os.O_NOFOLLOW)
start, name = time.monotonic(), "-"
try:
    fcntl.ioctl(fd, request, argument)
except OSError as exc:
    name = errno.errorcode[exc.errno]
print(name, time.monotonic() - start)
"""
PROGRAM, RELEASE, ASSIGN = 0xB680, 0x4004B681, 0x4004B682
API_VERSION = 0xB600


@pytest.fixture(scope="module")
def drivers(lab_vm: pathlib.Path) -> Iterator[pathlib.Path]:
    inside(lab_vm, f"{LIB}; lab_dfl")
    yield lab_vm
    inside(lab_vm, f"{LIB}; lab_dfl off")


@pytest.fixture
def card(drivers: pathlib.Path) -> Iterator[pathlib.Path]:
    """Leave the card as if it had just been found."""
    yield drivers
    inside(drivers, f"{LIB}; lab_revive {topology.PAC_ADDRESS}")
    wait_for(lambda: afu_id(drivers) != "", "the card")


def ioctl(
    lab: pathlib.Path, request: int, data: bytes, size: int
) -> tuple[str, float]:
    """Return the errno's name, and the seconds that the call took."""
    argv = (sys.executable, "-c", IOCTL, str(request), data.hex(), str(size))
    name, seconds = remote(lab, *argv).split()
    return name, float(seconds)


def program(
    lab: pathlib.Path, function: str, directive: str = "", size: int = 4096
) -> tuple[str, float]:
    data = bytes.fromhex(function) + directive.encode()
    return ioctl(lab, PROGRAM, data, size)


def afu_id(lab: pathlib.Path) -> str:
    """Return the loaded function; nothing where it can't be read."""
    return inside(lab, f"cat {PORT}/afu_id 2> /dev/null || true").strip()


def driver(lab: pathlib.Path) -> str:
    return inside(lab, f"basename $(readlink {CARD}/driver)").strip()


def nodes(lab: pathlib.Path) -> set[str]:
    """Return the FPGA devices in the /dev that commands out here see."""
    listed = remote(lab, "ls", "/dev").split()
    return {name for name in listed if name.startswith("dfl-")}


def test_devices_come_and_go(lab_vm: pathlib.Path) -> None:
    inside(lab_vm, f"{LIB}; lab_dfl off")
    assert nodes(lab_vm) == set()
    inside(lab_vm, f"{LIB}; lab_dfl")
    wait_for(
        lambda: nodes(lab_vm) == {"dfl-fme.0", "dfl-port.0"}, "the devices"
    )
    # our own are there, too
    assert len(remote(lab_vm, "head", "-c", "4", "/dev/zero")) == 4
    assert remote(lab_vm, "ls", "/dev/pts")


def test_card_says_what_it_is(card: pathlib.Path) -> None:
    assert driver(card) == "dfl-pci"
    interface = inside(card, f"cat {COMPAT_ID}").strip()
    assert interface == topology.PAC_INTERFACE
    assert len(afu_id(card)) == len(topology.PAC_FUNCTION)


@pytest.mark.parametrize("size", [64, 4097, (40 << 20) + 1])
def test_programming_changes_the_function(
    card: pathlib.Path, size: int
) -> None:
    function = uuid.uuid4().hex
    name, _ = program(card, function, size=size)
    assert name == "-"
    assert afu_id(card) == function


def test_success_that_changes_nothing(card: pathlib.Path) -> None:
    before = afu_id(card)
    assert program(card, uuid.uuid4().hex, "SAME")[0] == "-"
    assert afu_id(card) == before


@pytest.mark.parametrize("directive", ["ERROR", "HANG", "VANISH"])
def test_failures_leave_the_port_disabled(
    card: pathlib.Path, directive: str
) -> None:
    before = afu_id(card)
    name, seconds = program(card, uuid.uuid4().hex, directive)
    is_late = directive != "ERROR"
    assert name == errno.errorcode[errno.ETIMEDOUT if is_late else errno.EIO]
    assert (seconds > PATIENCE_S - 1) is is_late
    assert afu_id(card) == ""
    # what is loaded well afterwards does not help: the driver has to
    if directive != "VANISH":
        function = uuid.uuid4().hex
        assert program(card, function)[0] == "-"
        assert afu_id(card) == ""
        inside(card, REBIND)
        assert afu_id(card) == function
        return
    config = inside(card, f"head -c 4 {CARD}/config | od -An -tx1")
    assert config.split() == ["ff"] * 4
    inside(card, f"{LIB}; lab_revive {topology.PAC_ADDRESS}")
    assert afu_id(card) == before


@pytest.mark.parametrize(
    ("request_number", "data", "number"),
    [
        (API_VERSION, 0, errno.ENOTTY),  # known inside, not carried
        (RELEASE, 1, errno.EINVAL),
        (ASSIGN, 0, errno.EBUSY),
    ],
)
def test_refusals_come_back_as_they_are(
    card: pathlib.Path, request_number: int, data: int, number: int
) -> None:
    argument = data.to_bytes(4, sys.byteorder)
    name, _ = ioctl(card, request_number, argument, 4)
    assert name == errno.errorcode[number]


def test_port_goes_to_a_virtual_function_and_back(
    card: pathlib.Path,
) -> None:
    port, function = bytes(4), uuid.uuid4().hex
    behind = f"cat {CARD}/virtfn0/fpga_region/region*/dfl-port.*/afu_id"
    assert ioctl(card, RELEASE, port, 4)[0] == "-"
    assert nodes(card) == {"dfl-fme.0"}
    inside(card, f"echo 1 > {CARD}/sriov_numvfs")
    assert len(nodes(card)) == 2
    assert program(card, function)[0] == "-"
    assert inside(card, behind).strip() == function
    inside(card, f"echo 0 > {CARD}/sriov_numvfs")
    assert ioctl(card, ASSIGN, port, 4)[0] == "-"
    # it is there, and no driver takes it a second time
    assert "dfl-port.0" in nodes(card)
    assert afu_id(card) == ""
    inside(card, REBIND)
    assert afu_id(card) == function


def test_card_goes_to_a_guest_and_comes_back(card: pathlib.Path) -> None:
    function = uuid.uuid4().hex
    assert program(card, function)[0] == "-"
    with Domain(card, pci_hostdev(topology.PAC_ADDRESS)) as domain:
        assert driver(card) == "vfio-pci"
        assert nodes(card) == set()
        wait_for(lambda: "U" in domain.console_output(), "the guest")
    assert driver(card) == "dfl-pci"
    wait_for(lambda: afu_id(card) == function, "the function")
