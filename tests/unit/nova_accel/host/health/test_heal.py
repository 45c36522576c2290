# SPDX-License-Identifier: Apache-2.0
"""Acknowledged kernel errors no longer make a device faulty."""

import os
import pathlib
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.cli import commands
from nova_accel.config import policy
from nova_accel.discovery import capture, change_detection, note_stores
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import error_counters, fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import names
from tests.hosts import build, look
from tests.support import strategies
from tests.support.hosts import ailing
from tests.support.hosts.ailing import (
    CARD,
    GONE,
    OTHER,
    WELL,
    errors_of,
    find,
    put,
)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make(ailing.HOST, tmp_path / "host")


@pytest.fixture
def acknowledged(tmp_path: pathlib.Path) -> device_notes.ErrorBaseline:
    return device_notes.ErrorBaseline(str(tmp_path / "state"), boot="one")


def test_acknowledged_errors_do_not_count(
    root: pathlib.Path, acknowledged: device_notes.ErrorBaseline
) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(2)})
    acknowledged.put({CARD: 2})
    assert find(root, acknowledged) == {}
    put(root, CARD, {"aer_dev_fatal": errors_of(3)})
    assert "1 uncorrectable" in find(root, acknowledged)[CARD]


def test_a_reset_counter_needs_a_new_acknowledgment(
    root: pathlib.Path, acknowledged: device_notes.ErrorBaseline
) -> None:
    acknowledged.put({CARD: 2})
    put(root, CARD, {"aer_dev_fatal": errors_of(0)})
    assert find(root, acknowledged) == {}
    put(root, CARD, {"aer_dev_fatal": errors_of(2)})
    assert "2 uncorrectable" in find(root, acknowledged)[CARD]


def test_another_boot_needs_a_new_acknowledgment(
    root: pathlib.Path,
    tmp_path: pathlib.Path,
    acknowledged: device_notes.ErrorBaseline,
) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(2)})
    acknowledged.put({CARD: 2})
    later = device_notes.ErrorBaseline(str(tmp_path / "state"), boot="two")
    assert "2 uncorrectable" in find(root, later)[CARD]


def test_acknowledgments_survive_a_restart(
    tmp_path: pathlib.Path, acknowledged: device_notes.ErrorBaseline
) -> None:
    acknowledged.put({CARD: 2, OTHER: 0})
    later = device_notes.ErrorBaseline(str(tmp_path / "state"), boot="one")
    assert later.read() == {CARD: 2, OTHER: 0}


def test_unreadable_acknowledgments_keep_their_last_value(
    tmp_path: pathlib.Path, acknowledged: device_notes.ErrorBaseline
) -> None:
    acknowledged.put({CARD: 2})
    assert acknowledged.read() == {CARD: 2}
    place = pathlib.Path(acknowledged.path)
    (place / "0000%3A3d%3A00.0.json").write_text("{")
    assert acknowledged.read() == {}
    for note in place.iterdir():
        note.unlink()
    place.rmdir()
    acknowledged.put({CARD: 3})
    assert acknowledged.read() == {CARD: 3}
    for note in place.iterdir():
        note.unlink()
    place.rmdir()
    place.write_text("no directory")
    assert acknowledged.read() == {CARD: 3}


def test_an_outdated_acknowledgment_that_cant_be_removed_is_ignored(
    root: pathlib.Path,
    acknowledged: device_notes.ErrorBaseline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acknowledged.put({CARD: 2})
    put(root, CARD, {"aer_dev_fatal": errors_of(1)})

    def refuse(path: object, **_: object) -> None:
        raise PermissionError(13, "it is root's", path)

    monkeypatch.setattr(os, "unlink", refuse)
    assert find(root, acknowledged).keys() == {CARD}
    put(root, CARD, {"aer_dev_fatal": errors_of(2)})
    assert "2 uncorrectable" in find(root, acknowledged)[CARD]
    acknowledged.put({CARD: 2})
    assert find(root, acknowledged).keys() == set()


def test_the_boot_id_is_read_from_the_kernel(tmp_path: pathlib.Path) -> None:
    assert device_notes.read_boot_id() == device_notes.read_boot_id() != ""
    assert device_notes.read_boot_id(str(tmp_path / "none")) == ""


events = st.lists(
    st.one_of(
        st.integers(1, 3).map(lambda failures: ("fail", failures)),
        st.sampled_from([("heal", 0), ("again", 0), ("restart", 0)]),
    ),
    max_size=12,
)


@given(events)
def test_a_card_is_faulty_after_errors_since_the_last_heal(
    course: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        root = build.build(
            {"functions": [{"address": CARD, "id": "10de:26b9",
                            "class": "030200", "driver": "vfio-pci",
                            "group": 1}]},
            place / "host",
        )  # fmt: skip
        count, is_ill = 0, False
        acknowledged = device_notes.ErrorBaseline(directory, boot="one")
        for what, number in course:
            if what == "fail":
                count, is_ill = count + number, True
            elif what == "heal":
                acknowledged.put({CARD: count})
                is_ill = False
            elif what == "again":
                count, is_ill = 0, False
            else:
                acknowledged = device_notes.ErrorBaseline(
                    directory, boot="one"
                )
            put(root, CARD, {"aer_dev_fatal": errors_of(count)})
            assert bool(find(root, acknowledged)) is is_ill, (what, count)


# -- passes over a host -----------------------------------------------------


def detector_of(
    root: pathlib.Path, state_dir: pathlib.Path
) -> change_detection.ChangeDetector:
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root),
        look.DRIVERS,
        policy.DeviceRules(),
        stores=note_stores.NoteStores(
            faulted=device_notes.FaultNotes(str(state_dir)),
            drained=device_notes.DrainNotes(str(state_dir)),
            baseline=device_notes.ErrorBaseline(str(state_dir)),
        ),
    )
    (root / "sys/kernel").mkdir(exist_ok=True)
    (root / "sys/kernel/uevent_seqnum").write_text("1\n")
    return detector


def changed(detector: change_detection.ChangeDetector) -> model.Device:
    state = detector.read_changed()
    assert state is not None, "the change was not detected"
    return look.device(state, CARD)


def test_a_pass_detects_faults_and_heals(
    root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(0)}, WELL)
    detector = detector_of(root, tmp_path / "state")
    assert not look.device(detector.read(), CARD).fault
    assert detector.read_changed() is None
    put(root, CARD, head=GONE)
    assert "does not answer" in changed(detector).fault
    assert detector.read_changed() is None
    put(root, CARD, head=WELL)
    assert not changed(detector).fault
    put(root, CARD, {"aer_dev_fatal": errors_of(1)})
    assert "fatal error" in changed(detector).fault
    device_notes.ErrorBaseline(str(tmp_path / "state")).put({CARD: 1})
    assert not changed(detector).fault
    assert detector.read_changed() is None


def test_a_faulty_card_is_reserved_and_has_a_trait(
    root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    put(root, CARD, head=GONE)
    state = detector_of(root, tmp_path / "state").read()
    tree = tree_builder.build_tree(
        strategies.ROOT, state, policy.DeviceRules()
    )
    ill, well = (
        tree.node(names.provider_uuid(strategies.ROOT.uuid, address))
        for address in (CARD, OTHER)
    )
    assert ill is not None
    assert well is not None
    assert names.FAULTED_TRAIT in ill.traits
    assert names.FAULTED_TRAIT not in well.traits
    assert all(i.reserved == i.total for i in ill.inventories.values())
    assert "does not answer" in look.reasons(state, CARD)


def test_a_captured_host_has_the_same_faults(
    root: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(1)}, GONE)
    put(root, OTHER, head=WELL)
    archive = str(tmp_path / "host.tar.gz")
    assert commands.main(["capture", "--root", str(root), "-o", archive]) == 0
    image, _ = capture.load(archive)
    faults = error_counters.find_faults(
        host_reader.HostReader(source=image), look.read(root).devices
    )
    assert {a: f.reason for a, f in faults.items()} == find(root)
    place = f"{os.path.realpath(root)}/sys/bus/pci/devices/{OTHER}/config"
    path = os.path.realpath(place).removeprefix(os.path.realpath(root))
    assert image.content(path) == WELL
    capsys.readouterr()
    for where in (archive, str(root)):
        assert commands.main(["inspect", "--root", where]) == 0
        assert "does not answer any more" in capsys.readouterr().out


def command(root: pathlib.Path, state_dir: pathlib.Path, *words: str) -> int:
    state_dir.mkdir(exist_ok=True)  # as nova-compute does
    conf = state_dir.parent / "nova.conf"
    conf.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {state_dir}\n")
    return commands.main(["heal", *words, "--config-file", str(conf)])


def test_heal_acknowledges_errors(
    root: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state_dir = tmp_path / "state"
    put(root, CARD, {"aer_dev_fatal": errors_of(2)}, WELL)
    assert command(root, state_dir) == 0
    assert f"`nova-accel heal {CARD}`" in capsys.readouterr().out
    assert command(root, state_dir, "3D:00.0") == 0
    assert "offered again" in capsys.readouterr().out
    assert command(root, state_dir) == 0
    assert "Nothing is set aside" in capsys.readouterr().out
    assert command(root, state_dir, CARD) == 2
    assert not look.device(detector_of(root, state_dir).read(), CARD).fault


def test_heal_removes_both_kinds_of_faults(
    root: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state_dir = tmp_path / "state"
    put(root, CARD, {"aer_dev_fatal": errors_of(2)}, WELL)
    device_notes.FaultNotes(str(state_dir)).put(CARD, "Xid 79", None)
    fault = look.device(detector_of(root, state_dir).read(), CARD).fault
    assert "Xid 79" in fault
    assert "2 uncorrectable" in fault
    assert command(root, state_dir, CARD) == 0
    assert not look.device(detector_of(root, state_dir).read(), CARD).fault


def test_heal_of_a_card_includes_its_regions(tmp_path: pathlib.Path) -> None:
    card, state_dir = "0000:b1:00.0", tmp_path / "state"
    root = look.make("dfl-n6000", tmp_path / "host")
    for address in (card, "0000:b1:00.2"):
        put(root, address, {"aer_dev_fatal": errors_of(1)})
    region = f"{card}/region-0"
    state = detector_of(root, state_dir).read()
    assert f"`nova-accel heal {card}`" in look.device(state, region).fault
    assert command(root, state_dir, card) == 0
    state = detector_of(root, state_dir).read()
    assert not look.device(state, region).fault
    assert not look.device(state, card).fault


def test_a_card_that_does_not_answer_cannot_be_healed(
    root: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(root, CARD, head=GONE)
    command(root, tmp_path / "state", CARD)
    assert "is set aside still" in capsys.readouterr().out
