# SPDX-License-Identifier: Apache-2.0
"""Notes of each kind: changes that can't be written last in memory."""

import os
import pathlib
import shutil
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.host.state import device_notes, notes

ADDRESS, OTHER = "0000:3b:00.0", "0000:af:00.0"
KINDS = [value for value in vars(notes).values() if type(value) is notes.Kind]
each_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: str(kind.directory)
)


def note_of(
    kind: notes.Kind[Any], reason: str = "", address: str = ADDRESS
) -> Any:
    return kind.note(address=address, reason=reason, when=notes.now())


def test_each_kind_has_a_directory_that_is_checked() -> None:
    directories = [kind.directory for kind in KINDS]
    assert sorted(directories) == sorted(notes.DIRECTORIES)
    assert len(set(directories)) == 7


@each_kind
def test_notes_are_read_by_the_next_service(
    kind: notes.Kind[Any], tmp_path: pathlib.Path
) -> None:
    note = note_of(kind)
    notes.NoteStore(str(tmp_path), kind).write(note)
    assert notes.NoteStore(str(tmp_path), kind).read() == {ADDRESS: note}


@each_kind
def test_a_note_that_cant_be_written_counts_until_the_service_ends(
    kind: notes.Kind[Any],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = notes.NoteStore(str(tmp_path), kind)
    (tmp_path / kind.directory).write_text("no directory")
    with pytest.raises(OSError):
        store.write(note_of(kind))
    for reason in ("first", "second"):
        store.write_or_retain(note_of(kind, reason))
    assert caplog.text.count(f"{kind.subject} {ADDRESS} can't be wri") == 1
    (tmp_path / kind.directory).unlink()
    assert store.read()[ADDRESS].reason == "second"
    assert notes.NoteStore(str(tmp_path), kind).read() == {}
    store.write_or_retain(note_of(kind, "third"))
    assert store.read()[ADDRESS].reason == "third"
    assert notes.NoteStore(str(tmp_path), kind).read() == store.read()
    assert store.remove(ADDRESS)
    assert store.read() == {}


@each_kind
def test_a_note_that_cant_be_removed_counts_for_the_next_service(
    kind: notes.Kind[Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = notes.NoteStore(str(tmp_path), kind)
    store.write(note_of(kind, "first"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _refuse)
        with pytest.raises(PermissionError):
            store.remove(ADDRESS)
        assert ADDRESS in store.read()
        store.remove_or_ignore(ADDRESS)
        store.remove_or_ignore(ADDRESS)
    assert caplog.text.count(f"{kind.subject} {ADDRESS} can't be rem") == 1
    assert store.read() == store.read_last("x") == {}
    assert ADDRESS in notes.NoteStore(str(tmp_path), kind).read()
    # Another process may write a note meanwhile.
    later = notes.NoteStore(str(tmp_path), kind)
    later.write(note_of(kind, "second"))
    assert store.read()[ADDRESS].reason == "second"


def _refuse(path: object, **_: object) -> None:
    raise PermissionError(13, "it is root's", path)


@each_kind
def test_the_last_notes_count_while_they_cant_be_read(
    kind: notes.Kind[Any],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, place = notes.NoteStore(str(tmp_path), kind), tmp_path
    store.write(note_of(kind))
    store.write(note_of(kind, address=OTHER))
    last = store.read_last("nothing is lost")
    store.remove(OTHER)
    shutil.rmtree(place / kind.directory)
    (place / kind.directory).write_text("no directory")
    for _ in range(2):
        assert store.read_last("nothing is lost") == {ADDRESS: last[ADDRESS]}
    assert caplog.text.count("nothing is lost") == 1
    with pytest.raises(errors.UnreadableError):
        store.read()
    store.remove_or_ignore(ADDRESS)
    (place / kind.directory).unlink()
    assert store.read_last("nothing is lost") == store.read() == {}


@each_kind
def test_notes_without_a_directory_are_in_memory(
    kind: notes.Kind[Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    store = notes.NoteStore(None, kind)
    store.write(note_of(kind))
    store.write_or_retain(note_of(kind, address=OTHER))
    assert store.read().keys() == store.read_last("x").keys()
    assert store.read().keys() == {ADDRESS, OTHER}
    assert store.remove(ADDRESS)
    assert not store.remove(ADDRESS)
    store.remove_or_ignore(OTHER)
    assert store.read() == {}
    assert not caplog.text
    assert not list(tmp_path.iterdir())


def test_unclean_functions_are_forgotten_by_hand(
    tmp_path: pathlib.Path,
) -> None:
    marks = device_notes.FaultNotes(str(tmp_path))
    marks.put(ADDRESS, "it does not answer", None)
    marks.begin_scrub(OTHER, ADDRESS)
    unclean = marks.read_unclean()
    assert unclean.keys() == {ADDRESS, OTHER}
    assert unclean[ADDRESS] == f"{ADDRESS} is set aside: it does not answer"
    marks.forget(ADDRESS)
    assert marks.read_unclean().keys() == {OTHER}


def test_the_story_of_a_function(tmp_path: pathlib.Path) -> None:
    marks = device_notes.FaultNotes(str(tmp_path))
    claim = model.Claim(
        consumer="server-1",
        provider="provider-1",
        device=ADDRESS,
        profile="10de:1e07",
        slot=ADDRESS,
        parent=ADDRESS,
        handle=ADDRESS,
        technology="passthrough",
        state=model.ClaimState.PLANNED,
    )
    assert marks.read_story(ADDRESS, ADDRESS).explain_unclean() == ""
    marks.note_assigned(claim)
    marks.serials.write(
        notes.Assignment(address=ADDRESS, reason="", server="server-1")
    )
    stories = [marks.read_story(ADDRESS, ADDRESS)]
    marks.begin_scrub(ADDRESS, ADDRESS)
    stories.append(marks.read_story(ADDRESS, ADDRESS))
    marks.put(ADDRESS, "it does not answer", None)
    marks.end_scrub(ADDRESS)
    stories.append(marks.read_story(ADDRESS, ADDRESS))
    marks.heal([ADDRESS])
    marks.begin_scrub(ADDRESS, ADDRESS)
    marks.end_scrub(ADDRESS, is_clean=True)
    stories.append(marks.read_story(ADDRESS, ADDRESS))
    assert stories[3] == device_notes.FunctionStory(
        unreleased=None, serial=None, scrub=None, fault=None
    )
    assert [
        [story.unreleased, story.serial, story.scrub, story.fault].count(None)
        for story in stories
    ] == [2, 1, 1, 4]
    assert marks.read_unclean() == {}
    begun = stories[1].scrub
    assert begun is not None
    assert [story.explain_unclean() for story in stories] == [
        "server server-1 had it last",
        f"its scrub, begun at {begun.when}, has not ended",
        f"{ADDRESS} is set aside: it does not answer",
        "",
    ]
