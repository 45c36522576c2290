# SPDX-License-Identifier: Apache-2.0
"""Record of a removal, and the files that it removes."""

from pathlib import Path

from nova_accel.host.state import notes, service_lock
from placement_sync.fleet.removal import removal_files


def test_a_record_grows(tmp_path: Path) -> None:
    removal_files.record_names(str(tmp_path), {"CUSTOM_A"})
    removal_files.record_names(str(tmp_path), {"CUSTOM_B"})
    names = removal_files.read_names(str(tmp_path))
    assert names == {"CUSTOM_A", "CUSTOM_B"}


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "removal.json").write_text("{")
    assert removal_files.read_names(str(tmp_path)) == set()


def test_only_files_of_this_library_are_removed(tmp_path: Path) -> None:
    """The directory may be one of other programs, too."""
    (tmp_path / "drained").mkdir()
    (tmp_path / "drained/0000_3b_00.0.json").write_text("{}")
    for name in ("book.json", "nova-compute.lock", "compute_id"):
        (tmp_path / name).write_text("")
    (tmp_path / "instances").mkdir()
    assert removal_files.has_files(str(tmp_path))
    removal_files.remove_files(str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"compute_id", "instances"}
    assert not removal_files.has_files(str(tmp_path))


def test_notes_of_unclean_functions_stay(tmp_path: Path) -> None:
    """With the lock files, so that the removal can go on."""
    for name in ("drained", "unreleased", "serials", "scrubbing"):
        (tmp_path / name).mkdir()
    for address in ("0000:3b:00.0", "0000:3c:00.0"):
        name = notes.file_name(address)
        for directory in ("drained", "unreleased"):
            (tmp_path / directory / name).write_text("{}")
    for name in ("book.json", *service_lock.NAMES):
        (tmp_path / name).write_text("")
    removal_files.remove_files(str(tmp_path), {"0000:3b:00.0"})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"unreleased", *service_lock.NAMES}
    assert [path.name for path in (tmp_path / "unreleased").iterdir()] == [
        notes.file_name("0000:3b:00.0")
    ]
    removal_files.remove_files(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_links_are_not_followed(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("")
    state.mkdir()
    (state / "book.json").symlink_to(other / "file")
    removal_files.remove_files(str(state))
    assert (other / "file").exists()
    assert not list(state.iterdir())
