# SPDX-License-Identifier: Apache-2.0
"""Drains are stored, applied to devices, and removed."""

import json
import os
import pathlib
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.discovery import change_detection, note_stores
from nova_accel.host.state import device_notes, notes
from nova_accel.host.sysfs import fs
from tests.hosts import look
from tests.support.fpga import card

GPU = "0000:3b:00.0"
OTHER_USER = 12345


@pytest.fixture
def drained(tmp_path: pathlib.Path) -> device_notes.DrainNotes:
    return device_notes.DrainNotes(str(tmp_path / "state"))


@pytest.fixture
def strict() -> Iterator[None]:
    """Set a umask that keeps other users from reading new files."""
    before = os.umask(0o077)
    yield
    os.umask(before)


# -- notes ------------------------------------------------------------------


class Swap:
    """Replaces a directory as soon as this process changes its mode."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None
        sys.addaudithook(self)  # there is no way to remove it

    def __call__(self, event: str, _: tuple[object, ...]) -> None:
        if event in ("os.chmod", "os.chown") and self.act:
            act, self.act = self.act, None
            act()


@pytest.fixture(scope="module")
def swap() -> Swap:
    return Swap()


def test_a_symlink_placed_meanwhile_changes_no_other_file(
    tmp_path: pathlib.Path, swap: Swap
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    place = tmp_path / "state"

    def exchange() -> None:
        place.rmdir()
        place.symlink_to(secret)

    swap.act = exchange
    with pytest.raises(OSError):
        device_notes.DrainNotes(str(place)).put(GPU, "x")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_symlink_is_not_read(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    fields = {"address": GPU, "reason": "secret", "when": "today"}
    secret.write_text(json.dumps(fields))
    drained = device_notes.DrainNotes(str(tmp_path))
    drained.put(GPU, "x")
    (note,) = pathlib.Path(drained.path).iterdir()
    note.unlink()
    note.symlink_to(secret)
    assert "symbolic links" in drained.read()[GPU].reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is at risk")
def test_root_follows_symlinks_in_its_own_directories_only(
    tmp_path: pathlib.Path,
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for name, owner in (("root", 0), ("service", OTHER_USER)):
        place = tmp_path / name
        place.mkdir()
        (place / "state").symlink_to(target)
        os.chown(place, owner, owner)
    device_notes.DrainNotes(str(tmp_path / "root/state")).put(GPU, "x")
    assert device_notes.DrainNotes(str(target)).read().keys() == {GPU}
    other = device_notes.DrainNotes(str(tmp_path / "service/state"))
    for change in (
        lambda: other.put("mtty", "x"),
        lambda: other.remove([GPU]),
    ):
        with pytest.raises(
            (OSError, errors.UnreadableError), match="symbolic links"
        ) as caught:
            change()
        assert other.path in str(caught.value)
    assert device_notes.DrainNotes(str(target)).read().keys() == {GPU}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is at risk")
def test_a_directory_of_root_keeps_its_owner(
    tmp_path: pathlib.Path,
) -> None:
    """A directory renamed to the new one's name keeps its owner."""
    secret = tmp_path / "secret"
    secret.mkdir(0o700)
    (secret / "key").touch()
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    real = os.mkdir

    def exchange(name: str, *arguments: Any, **named: Any) -> None:
        real(name, *arguments, **named)
        if name == "state":
            secret.rename(tmp_path / name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", exchange)
        device_notes.DrainNotes(str(tmp_path / "state")).put(GPU, "x")
    status = (tmp_path / "state").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes owners")
def test_a_directory_gets_its_owner_after_a_kill(
    tmp_path: pathlib.Path,
) -> None:
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    real = os.fchown
    killed = False

    def kill(*arguments: int) -> None:
        nonlocal killed
        if not killed:
            killed = True
            raise KeyboardInterrupt
        real(*arguments)

    drained = device_notes.DrainNotes(str(tmp_path / "state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fchown", kill)
        with pytest.raises(KeyboardInterrupt):
            drained.put(GPU, "x")
        assert (tmp_path / "state").stat().st_uid == 0
        drained.put(GPU, "x")
    for place in (tmp_path / "state", pathlib.Path(drained.path)):
        status = place.stat()
        assert status.st_uid == status.st_gid == OTHER_USER
        assert stat.S_IMODE(status.st_mode) == 0o750


def test_a_drain_survives_a_restart(drained: device_notes.DrainNotes) -> None:
    drained.put(GPU, "a fan is loud", "ann")
    notes = device_notes.DrainNotes(os.path.dirname(drained.path)).read()
    assert notes.keys() == {GPU}
    assert (notes[GPU].address, notes[GPU].reason) == (GPU, "a fan is loud")
    assert notes[GPU].author == "ann"
    assert notes[GPU].when.endswith("+00:00")


def test_nothing_is_drained_at_first(drained: device_notes.DrainNotes) -> None:
    assert drained.read() == {}
    assert drained.remove([GPU]) == frozenset()
    assert not os.path.exists(drained.path)


def test_remove_returns_the_removed_drains(
    drained: device_notes.DrainNotes,
) -> None:
    for address in (GPU, card.REGION, card.CARD):
        drained.put(address, "x")
    assert drained.remove([GPU, card.REGION, "mtty"]) == {GPU, card.REGION}
    assert drained.remove([GPU]) == frozenset()
    assert drained.read().keys() == {card.CARD}


def test_notes_of_root_are_readable_by_the_service(
    tmp_path: pathlib.Path, strict: None
) -> None:
    if os.geteuid():
        pytest.skip("only root gives its directories away")
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    drained = device_notes.DrainNotes(str(tmp_path / "accel/state"))
    drained.put(GPU, "x")
    for path in (tmp_path / "accel", tmp_path / "accel/state"):
        assert path.stat().st_uid == path.stat().st_gid == OTHER_USER
    assert pathlib.Path(drained.path).stat().st_uid == OTHER_USER
    assert pathlib.Path(drained.path).stat().st_mode & 0o777 == 0o750
    (note,) = pathlib.Path(drained.path).iterdir()
    assert note.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"address": "0000:3b:00.0", "reason": 7, "when": ""}',
        b'{"address": "0000:af:00.0", "reason": "x", "when": ""}',
        b"\0\0",
        b"\xff\xfe\x00",
        b"[" * 30_000,
        b"1" * 9_000,
        b'{"reason": "' + b"x" * 100_000,
    ],
    ids=lambda content: content[:60],
)
def test_an_unreadable_note_counts(
    drained: device_notes.DrainNotes, content: bytes
) -> None:
    drained.put(GPU, "x")
    (path,) = pathlib.Path(drained.path).iterdir()
    path.write_bytes(content)
    notes = drained.read()
    assert notes.keys() == {GPU}
    assert f"the reason in {path} can't be read" in notes[GPU].reason
    assert drained.remove([GPU]) == {GPU}


def test_a_note_that_is_a_directory_counts(
    drained: device_notes.DrainNotes,
) -> None:
    place = pathlib.Path(drained.path)
    (place / f"{GPU}.json").mkdir(parents=True)
    assert drained.read().keys() == {GPU}
    with pytest.raises(OSError, match="directory"):
        drained.remove([GPU])


def test_a_note_created_by_hand_counts_and_is_removed(
    drained: device_notes.DrainNotes,
) -> None:
    place = pathlib.Path(drained.path)
    place.mkdir(parents=True)
    (place / f"{GPU}.json").write_text("")
    assert drained.read().keys() == {GPU}
    drained.put(GPU, "x")
    assert drained.remove([GPU]) == {GPU}
    assert drained.read() == {}


def test_a_partial_note_does_not_count(
    drained: device_notes.DrainNotes,
) -> None:
    """The writer was killed before the rename."""
    drained.put(GPU, "x")
    pathlib.Path(drained.path, ".tmp123").write_text("{")
    assert drained.read().keys() == {GPU}


def test_an_unwritable_directory_is_an_error(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "drained").write_text("no directory")
    drained = device_notes.DrainNotes(str(tmp_path))
    with pytest.raises(OSError, match="irectory"):
        drained.put(GPU, "x")
    with pytest.raises(errors.UnreadableError):
        drained.read()
    with pytest.raises(errors.UnreadableError):
        drained.remove([GPU])


def test_a_reason_is_one_line_of_text(
    drained: device_notes.DrainNotes,
) -> None:
    drained.put(GPU, "  a fan\n\tis loud \udcff")
    assert drained.read()[GPU].reason == "a fan is loud ?"
    (path,) = pathlib.Path(drained.path).iterdir()
    assert json.loads(path.read_text())["address"] == GPU


def test_a_fifo_does_not_block(
    drained: device_notes.DrainNotes,
) -> None:
    drained.put(GPU, "x")
    (path,) = pathlib.Path(drained.path).iterdir()
    path.unlink()
    os.mkfifo(path)
    assert drained.read().keys() == {GPU}


def test_control_characters_of_a_note_are_replaced(
    drained: device_notes.DrainNotes,
) -> None:
    drained.put(GPU, "x")
    (path,) = pathlib.Path(drained.path).iterdir()
    text = '"a\\nfan\\u001b[2J\\ud800"'
    path.write_text(path.read_text().replace('"x"', text))
    assert drained.read()[GPU].reason == "a fan?[2J?"


def test_a_failed_write_leaves_no_file(
    drained: device_notes.DrainNotes,
) -> None:
    drained.put("mtty", "x")
    with pytest.raises(UnicodeEncodeError):
        drained.put("\udcff", "x")
    assert os.listdir(drained.path) == ["mtty.json"]


def test_concurrent_writers_lose_nothing(
    drained: device_notes.DrainNotes,
) -> None:
    failed: list[BaseException] = []
    addresses = [f"0000:{n:02x}:00.0" for n in range(8)]

    def drain(address: str) -> None:
        try:
            for _ in range(20):
                drained.put(address, "x")
                assert drained.read()[address].reason == "x"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=drain, args=(a,)) for a in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert drained.read().keys() == {*addresses}


@given(st.text(min_size=1, max_size=40))
def test_any_address_survives_the_file_name(address: str) -> None:
    name = notes.file_name(address)
    assert "/" not in name
    assert notes.parse_file_name(name) == address


# -- drained devices --------------------------------------------------------


def drains_by(host: model.HostState) -> dict[str, str]:
    return {d.address: d.drain for d in host.devices if d.drain}


def detector_of(
    root: pathlib.Path, drained: device_notes.DrainNotes
) -> change_detection.ChangeDetector:
    """Return the detector of a host whose kernel counts uevents."""
    (root / "sys/kernel").mkdir(exist_ok=True)
    (root / "sys/kernel/uevent_seqnum").write_text("4711\n")
    return change_detection.ChangeDetector(
        fs.DiskSource(root),
        look.DRIVERS,
        policy.DeviceRules(),
        stores=note_stores.NoteStores(drained=drained),
    )


def test_a_drain_is_detected_without_a_uevent(
    tmp_path: pathlib.Path, drained: device_notes.DrainNotes
) -> None:
    detector = detector_of(look.make("t4-mdev", tmp_path / "host"), drained)
    before = detector.read()
    assert detector.read_changed() is None
    drained.put(GPU, "a fan is loud")
    after = detector.read_changed()
    assert after is not None
    assert drains_by(after) == {GPU: "a fan is loud"}
    assert detector.read_changed() is None
    drained.put(GPU, "it is sold")
    assert detector.read_changed() is not None
    drained.remove([GPU])
    assert detector.read_changed() == before


def test_a_region_read_alone_has_the_drain_of_its_card(
    tmp_path: pathlib.Path, drained: device_notes.DrainNotes
) -> None:
    detector = detector_of(look.make("dfl-pac", tmp_path / "host"), drained)
    (part, *_) = (d for d in detector.read().devices if d.parent)
    drained.put(part.parent, "x")
    again = detector.read_devices([part]).device(part.address)
    assert again is not None
    assert again.drain == "x"
    assert detector.read_changed() is not None


def test_unreadable_drains_keep_their_last_value(
    tmp_path: pathlib.Path,
    drained: device_notes.DrainNotes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    detector = detector_of(look.make("t4-mdev", tmp_path / "host"), drained)
    drained.put(GPU, "x")
    before = detector.read()
    os.rename(drained.path, tmp_path / "kept")
    pathlib.Path(drained.path).write_text("no directory")
    after = detector.read_changed()
    assert after is not None
    assert after.devices == before.devices
    reason = look.reasons(after, "[nova_accel] state_dir")
    assert f"{drained.path}: ENOTDIR" in reason
    assert "last marks" in reason
    assert detector.read_changed() is None
    assert caplog.text == ""


@pytest.mark.parametrize(
    "kind", [device_notes.DrainNotes, device_notes.FaultNotes]
)
def test_unreadable_marks_are_unknown_and_not_drained(
    tmp_path: pathlib.Path,
    kind: type[device_notes.DrainNotes] | type[device_notes.FaultNotes],
) -> None:
    """Unknown is not absent."""
    root = look.make("t4-mdev", tmp_path / "host")
    notes_on = {kind: kind(str(tmp_path / "state"))}
    place = pathlib.Path(notes_on[kind].path)
    place.parent.mkdir()
    place.write_text("no directory")
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root),
        look.DRIVERS,
        policy.DeviceRules(),
        stores=note_stores.NoteStores(
            faulted=notes_on.get(device_notes.FaultNotes),  # type: ignore[arg-type]
            drained=notes_on.get(device_notes.DrainNotes),  # type: ignore[arg-type]
        ),
    )
    before = detector.read()
    assert before.devices
    assert not any(d.fault or d.drain for d in before.devices)
    for device in before.devices:
        assert f"{place}: ENOTDIR" in device.marks_unknown
    reason = look.reasons(before, "[nova_accel] state_dir")
    assert f"{place}: ENOTDIR" in reason
    place.unlink()
    after = detector.read_changed()
    assert after is not None
    assert not any(d.marks_unknown for d in after.devices)
    assert look.reasons(after, "[nova_accel] state_dir") == ""


# -- the command ------------------------------------------------------------


def test_inspect_prints_drained_devices(
    tmp_path: pathlib.Path,
    drained: device_notes.DrainNotes,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conf = tmp_path / "nova.conf"
    root = look.make("t4-mdev", tmp_path / "host")
    state_dir = os.path.dirname(drained.path)
    conf.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {state_dir}\n")
    drained.put(GPU, "a fan is loud")
    arguments = ["inspect", "--config-file", str(conf)]
    assert commands.main(arguments) == 0
    text = capsys.readouterr().out
    assert text.count("\n  drained: a fan is loud\n") == 1
    assert f"{GPU}: is drained" in text
    assert commands.main([*arguments, "-f", "json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert [d.get("drain") for d in devices] == ["a fan is loud", None]
    assert not any("fault" in device for device in devices)
