# SPDX-License-Identifier: Apache-2.0
"""Changes of drain marks and faults by an operator."""

import pathlib

import pytest

from nova_accel import errors, model
from nova_accel.discovery import device_marks
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs, host_reader

CARD, GONE = "0000:3b:00.0", "0000:99:00.0"


def open_marks(
    place: pathlib.Path, faulted: device_notes.FaultNotes | None = None
) -> device_marks.DeviceMarks:
    """Return the marks of a host without devices."""
    root = place / "host"
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    source = fs.DiskSource(str(root))
    return device_marks.DeviceMarks(
        str(place / "state"),
        lambda: host_reader.HostReader(source=source),
        model.HostState,
        faulted,
    )


def test_notes_name_devices_that_the_host_lacks(
    tmp_path: pathlib.Path,
) -> None:
    marks = open_marks(tmp_path)
    marks.drain([GONE], "it is replaced", "ann")
    assert marks.list_addresses(model.HostState()) == {GONE}
    assert marks.undrain([GONE, CARD]) == {GONE}
    assert marks.list_addresses(model.HostState()) == frozenset()


def test_a_fault_that_was_never_written_is_healed(
    tmp_path: pathlib.Path,
) -> None:
    faulted = device_notes.FaultNotes(str(tmp_path / "state"))
    marks = open_marks(tmp_path, faulted)
    (tmp_path / "state").write_text("no directory")
    faulted.put(CARD, "its reset failed", None)
    (tmp_path / "state").unlink()
    assert marks.heal(model.HostState(), [CARD]) == {CARD: ""}
    assert faulted.read() == {}


def test_a_note_that_cant_be_written_names_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    marks = open_marks(tmp_path)
    (tmp_path / "state").write_text("no directory")
    with pytest.raises(errors.ConfigurationError, match="state: a note"):
        marks.drain([CARD], "it is replaced", "")
