# SPDX-License-Identifier: Apache-2.0
"""Another device at the address of a server's function is refused."""

import pathlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.execute import serials
from nova_accel.host.state import device_notes
from nova_accel.model import pci
from tests.lab import fakehost
from tests.support.hosts.simulated import A, B, stopped
from tests.support.hosts.simulated_scrub import (
    fault,
    give,
    resets,
    slot,
    started,
)
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.usefixtures("own_rights")
ONE, TWO, THREE = "0000:71:00.0", "0000:72:00.0", "0000:73:00.0"
NVME = "0000:71:00.0"


@contextmanager
def booted(
    tmp_path: pathlib.Path, *numbers: int, vf_class: int = 0
) -> Iterator[fakehost.Controller]:
    """Yield a host whose GPUs have these serial numbers.

    :param vf_class: class of cards with VFs instead of the GPUs.
    """
    if reason := fakehost.missing():
        pytest.skip(reason)
    places = (ONE, THREE if vf_class else TWO)
    cards = (
        fakehost.PciCard(
            address=address,
            vendor=0x10DE,
            device=0x1E07,
            class_code=vf_class or 0x030000,
            serial=number,
            total_vfs=4 if vf_class else 0,
            enabled_vfs=4 if vf_class else 0,
        )
        for address, number in zip(places, numbers, strict=False)
    )
    root = tmp_path / f"host-{'-'.join(map(str, numbers))}"
    with fakehost.simulated_sysfs(
        fakehost.HostSpec(cards=tuple(cards)), root
    ) as kernel:
        yield kernel


def numbers_of(root: pathlib.Path) -> serials.SerialNumbers:
    """Return the serial numbers of a host, with its notes."""
    notes = device_notes.FaultNotes(str(root / "state"))
    return serials.SerialNumbers(notes.serials, str(root))


def restart(life: lifecycle.Lifecycle, server: str, address: str) -> None:
    """Start a server again whose slot is in Nova's database."""
    claimed_slot = slot(life, address)
    life.restore(server, (claimed_slot,))
    give(life, claimed_slot, server)


def test_servers_are_refused_after_renumbering(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    with booted(tmp_path, 1, 2) as kernel:
        life = started(kernel, state)
        for server, address in ((A, ONE), (B, TWO)):
            give(life, slot(life, address), server)
            restart(life, server, address)
    with booted(tmp_path, 2, 1) as kernel:
        life = started(kernel, state)
        for server, address in ((A, ONE), (B, TWO)):
            with pytest.raises(errors.ClaimError) as caught:
                restart(life, server, address)
            assert f"{address} is another device" in str(caught.value)
            assert "put the devices back" in str(caught.value)
    with booted(tmp_path, 0, 0) as kernel:
        life = started(kernel, state)
        restart(life, A, ONE)  # unreadable is unknown
        restart(life, B, TWO)


def test_a_new_server_is_refused_the_device_of_another_one(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    with booted(tmp_path, 1, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, TWO), B)
    with booted(tmp_path, 2, 3) as kernel:
        life = started(kernel, state)
        life.restore(B, (slot(life, TWO),))
        with pytest.raises(errors.ClaimError, match=f"that server {B} had"):
            give(life, slot(life, ONE), A)


def test_an_unscrubbed_device_is_not_assigned_at_another_address(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    """The address and the claim of the server no longer exist."""
    with booted(tmp_path, 1, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, TWO), B)
    with booted(tmp_path, 2) as kernel:
        life = started(kernel, state)
        with pytest.raises(errors.ClaimError, match=f"that server {B} had"):
            give(life, slot(life, ONE), A)


def test_a_device_of_another_slot_is_faulted_and_not_scrubbed(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    """The number of the device that was at the address is unknown."""
    with booted(tmp_path, 0, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, ONE), A)
        give(life, slot(life, TWO), B)
    with booted(tmp_path, 2) as kernel:
        life = started(kernel, state)
        life.clean_up()
        assert resets(kernel) == []
        assert f"that server {B} had as {TWO}" in fault(life, ONE)


def test_devices_may_share_a_serial_number(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    with booted(tmp_path, 7, 7) as kernel:
        life = started(kernel, state)
        give(life, slot(life, ONE), A)
        give(life, slot(life, TWO), B)


def test_another_device_is_faulted_and_not_scrubbed(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    with booted(tmp_path, 1, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, ONE), A)
    with booted(tmp_path, 5, 2) as kernel:
        life = started(kernel, state)
        claimed_slot = slot(life, ONE)
        life.restore(A, (claimed_slot,))
        life.release(A, (claimed_slot,), stopped)
        assert resets(kernel) == []
        assert "is another device" in fault(life, ONE)
        assert life.claims() == ()


def test_the_next_server_may_get_another_device(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    with booted(tmp_path, 1, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, ONE), A)
        life.release(A, (slot(life, ONE),), stopped)
        assert resets(kernel) == [ONE]
    with booted(tmp_path, 5, 2) as kernel:
        life = started(kernel, state)
        give(life, slot(life, ONE), A)


# -- serial numbers ---------------------------------------------------------


def extended(*capabilities: tuple[int, bytes]) -> bytes:
    """Return configuration space with these extended capabilities."""
    space = bytearray(4096)
    place = 0x100
    for number, (kind, body) in enumerate(capabilities, 1):
        following = place + 0x40 if number < len(capabilities) else 0
        struct.pack_into("<I", space, place, following << 20 | 1 << 16 | kind)
        space[place + 4 : place + 4 + len(body)] = body
        place += 0x40
    return bytes(space)


def test_the_serial_number_is_found_after_other_capabilities() -> None:
    body = struct.pack("<II", 0x44556677, 0x00112233)
    space = extended((0x0001, b"\1" * 16), (0x0003, body))
    assert pci.parse_serial(space) == "00-11-22-33-44-55-66-77"
    assert pci.parse_serial(space[:64]) == ""


@pytest.mark.parametrize("body", [b"\0" * 8, b"\xff" * 8])
def test_a_serial_number_of_one_repeated_byte_is_ignored(body: bytes) -> None:
    assert pci.parse_serial(extended((0x0003, body))) == ""


@given(st.binary(max_size=4096))
def test_any_space_is_parsed(space: bytes) -> None:
    assert isinstance(pci.parse_serial(space), str)


def test_the_serial_of_an_nvme_controller_is_compared(
    tmp_path: pathlib.Path,
) -> None:
    function = tmp_path / "sys/bus/pci/devices" / NVME
    (function / "nvme/nvme0").mkdir(parents=True)
    (function / "nvme/nvme0/serial").write_text("S4YNNE0N801309      \n")
    assert serials.read_numbers(str(tmp_path), NVME) == {
        "nvme": "S4YNNE0N801309"
    }
    numbers = numbers_of(tmp_path)
    numbers.check(A, NVME)
    (function / "nvme/nvme0/serial").write_text("OTHER\n")
    with pytest.raises(errors.ClaimError, match="NVMe serial OTHER"):
        numbers.check(A, NVME)
    (function / "nvme/nvme0/serial").unlink()  # a guest has it
    numbers.check(A, NVME)
    assert not numbers.describe_mismatch(NVME)


def test_vfs_of_nvme_controllers_are_identified_by_their_pf(
    tmp_path: pathlib.Path, state: pathlib.Path
) -> None:
    """A namespace keeps its data through the reset of its VF."""

    def claim(server: str, vf: str) -> None:
        claimed_slot = slot(life, f"{vf[:-1]}0", vf)
        life.restore(server, (claimed_slot,))
        give(life, claimed_slot, server)

    with booted(tmp_path, 1, 2, vf_class=0x010802) as kernel:
        life = started(kernel, state)
        claim(A, f"{ONE[:-1]}1")
        claim(B, f"{ONE[:-1]}2")
        claim("third", f"{THREE[:-1]}3")
    with booted(tmp_path, 2, 1, vf_class=0x010802) as kernel:
        life = started(kernel, state)
        with pytest.raises(errors.ClaimError, match="is another device"):
            claim(A, f"{ONE[:-1]}1")
        with pytest.raises(errors.ClaimError, match=f"that server {B} had"):
            claim("fourth", f"{THREE[:-1]}2")
        claim("fourth", f"{THREE[:-1]}4")


def test_other_vfs_have_no_serial_numbers(tmp_path: pathlib.Path) -> None:
    """They keep no data through a reset, and may be renumbered."""
    with booted(tmp_path, 1, 2, vf_class=0x120000) as kernel:
        assert serials.read_numbers(str(kernel.root), ONE)
        assert not serials.read_numbers(str(kernel.root), f"{ONE[:-1]}1")


def test_unknown_numbers_are_added_later(tmp_path: pathlib.Path) -> None:
    function = tmp_path / "sys/bus/pci/devices" / NVME
    function.mkdir(parents=True)
    config = function / "config"
    body = struct.pack("<II", 1, 2)
    config.write_bytes(extended((0x0003, body)))
    numbers = numbers_of(tmp_path)
    numbers.check(A, NVME)
    (function / "nvme/nvme0").mkdir(parents=True)
    (function / "nvme/nvme0/serial").write_text("MINE\n")
    numbers.check(A, NVME)
    config.unlink()
    (function / "nvme/nvme0/serial").write_text("OTHER\n")
    with pytest.raises(errors.ClaimError, match="NVMe serial MINE; it may"):
        numbers.check(A, NVME)


def test_the_note_of_a_newer_release_is_not_replaced(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller = tmp_path / "sys/bus/pci/devices" / NVME / "nvme/nvme0"
    controller.mkdir(parents=True)
    (controller / "serial").write_text("MINE\n")
    numbers = numbers_of(tmp_path)
    numbers.check(A, NVME)
    (note,) = (tmp_path / "state/serials").iterdir()
    text = note.read_text().replace('"format": 1', '"format": 2')
    note.write_text(text)
    numbers.check(B, NVME)
    assert note.read_text() == text
    assert "its format is 2" in caplog.text
