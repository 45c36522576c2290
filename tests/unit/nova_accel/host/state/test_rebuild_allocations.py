# SPDX-License-Identifier: Apache-2.0
"""Allocations of rebuilt servers are stored and removed."""

import json
import os
import pathlib
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.host.state import rebuild_allocations

SERVER, OTHER = (f"{n * 8}-0000-4000-8000-000000000000" for n in "ab")
BOOKED = {"a provider": {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}}


@pytest.fixture
def store(tmp_path: pathlib.Path) -> rebuild_allocations.RebuildAllocations:
    return rebuild_allocations.RebuildAllocations(str(tmp_path / "state"))


def again(
    store: rebuild_allocations.RebuildAllocations,
) -> rebuild_allocations.RebuildAllocations:
    """Return what the next service has."""
    return rebuild_allocations.RebuildAllocations(os.path.dirname(store.path))


def test_it_outlives_the_service(
    store: rebuild_allocations.RebuildAllocations,
) -> None:
    store.put(SERVER, BOOKED)
    store.put(OTHER, {})
    assert store.read() == again(store).read() == {SERVER: BOOKED, OTHER: {}}


def test_nothing_is_booked_at_first(
    store: rebuild_allocations.RebuildAllocations,
) -> None:
    assert store.read() == {}
    store.remove(SERVER)
    assert not os.path.exists(store.path)


def test_what_is_booked_again_is_forgotten(
    store: rebuild_allocations.RebuildAllocations,
) -> None:
    store.put(SERVER, BOOKED)
    store.put(OTHER, BOOKED)
    again(store).read()
    store.remove(SERVER)
    assert store.read() == again(store).read() == {OTHER: BOOKED}


AMOUNTS = st.dictionaries(
    st.uuids().map(str),
    st.dictionaries(
        st.sampled_from(("VGPU", "PGPU", "CUSTOM_X")), st.integers(1)
    ),
)


@given(st.lists(st.tuples(st.sampled_from((SERVER, OTHER)), AMOUNTS)))
def test_the_last_word_counts(
    course: list[tuple[str, dict[str, dict[str, int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = rebuild_allocations.RebuildAllocations(place)
        for server, amounts in course:
            store.put(server, amounts)
        assert store.read() == again(store).read() == dict(course)


def with_amounts(text: str) -> str:
    """Return a note on a server that is whole but for its amounts."""
    note = {"address": SERVER, "reason": "", "when": "", "amounts": text}
    return json.dumps(note)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"amounts": null}',
        "[" * 100_000,
        '"x"',
        '{"address": Infinity}',
        with_amounts('{"a provider": {"VGPU": Infinity}}'),
        with_amounts('{"a provider": {"VGPU": 1e999}}'),
        with_amounts('{"a provider": {"VGPU": NaN}}'),
        with_amounts('{"a provider": ' + "[" * 10_000),
        with_amounts(f'{{"a provider": {{"VGPU": {"9" * 5_000}}}}}'),
    ],
    ids=lambda text: text[:70],
)
def test_a_note_that_is_broken_is_told_and_left(
    store: rebuild_allocations.RebuildAllocations,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.put(SERVER, BOOKED)
    (path,) = pathlib.Path(store.path).iterdir()
    store.put(OTHER, BOOKED)
    path.write_text(text)
    assert again(store).read() == {OTHER: BOOKED}
    assert SERVER in caplog.text
    assert path.exists()


@pytest.mark.parametrize(
    "amounts", ['"x"', "[]", '{"p": 1}', '{"p": {"c": []}}']
)
def test_amounts_that_are_broken(
    store: rebuild_allocations.RebuildAllocations,
    amounts: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.put(SERVER, BOOKED)
    (path,) = pathlib.Path(store.path).iterdir()
    written = path.read_text()
    start = written.index('"amounts": ') + len('"amounts": ')
    quoted = amounts.replace('"', '\\"')
    path.write_text(f'{written[:start]}"{quoted}"\n}}')
    assert again(store).read() == {}
    assert SERVER in caplog.text


def test_what_can_not_be_written_counts_until_the_end(
    store: rebuild_allocations.RebuildAllocations,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pathlib.Path(store.path).parent.write_text("a file")
    store.put(SERVER, BOOKED)
    assert "lost when this service ends" in caplog.text
    assert store.read() == {SERVER: BOOKED}
    store.remove(SERVER)
    assert store.read() == {}


def test_a_place_that_can_not_be_listed(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "booked").write_text("a file")
    assert rebuild_allocations.RebuildAllocations(str(tmp_path)).read() == {}
    assert "can't be read" in caplog.text
