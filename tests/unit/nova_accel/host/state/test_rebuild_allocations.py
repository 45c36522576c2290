# SPDX-License-Identifier: Apache-2.0
"""Allocations of rebuilt servers are stored and removed."""

import json
import os
import pathlib
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virt_hooks.operations import rebuild

SERVER, OTHER = (f"{n * 8}-0000-4000-8000-000000000000" for n in "ab")
ALLOCATIONS = {"a provider": {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}}


@pytest.fixture
def store(tmp_path: pathlib.Path) -> rebuild.RebuildAllocations:
    return rebuild.RebuildAllocations(str(tmp_path / "state"))


def again(
    store: rebuild.RebuildAllocations,
) -> rebuild.RebuildAllocations:
    """Return the store of the next service."""
    return rebuild.RebuildAllocations(os.path.dirname(store.path))


def test_removed_allocations_are_not_read(
    store: rebuild.RebuildAllocations,
) -> None:
    store.put(SERVER, ALLOCATIONS)
    store.put(OTHER, ALLOCATIONS)
    again(store).read()
    store.remove(SERVER)
    assert store.read() == again(store).read() == {OTHER: ALLOCATIONS}


AMOUNTS = st.dictionaries(
    st.uuids().map(str),
    st.dictionaries(
        st.sampled_from(("VGPU", "PGPU", "CUSTOM_X")), st.integers(1)
    ),
)


@given(st.lists(st.tuples(st.sampled_from((SERVER, OTHER)), AMOUNTS)))
def test_the_last_allocations_are_stored(
    course: list[tuple[str, dict[str, dict[str, int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = rebuild.RebuildAllocations(place)
        for server, amounts in course:
            store.put(server, amounts)
        assert store.read() == again(store).read() == dict(course)


def with_amounts(text: str) -> str:
    """Return the note of a server with these amounts."""
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
def test_a_damaged_note_is_logged_and_not_removed(
    store: rebuild.RebuildAllocations,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.put(SERVER, ALLOCATIONS)
    (path,) = pathlib.Path(store.path).iterdir()
    store.put(OTHER, ALLOCATIONS)
    path.write_text(text)
    assert again(store).read() == {OTHER: ALLOCATIONS}
    assert SERVER in caplog.text
    assert path.exists()


@pytest.mark.parametrize(
    "amounts", ['"x"', "[]", '{"p": 1}', '{"p": {"c": []}}']
)
def test_damaged_amounts_are_logged(
    store: rebuild.RebuildAllocations,
    amounts: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.put(SERVER, ALLOCATIONS)
    (path,) = pathlib.Path(store.path).iterdir()
    written = path.read_text()
    start = written.index('"amounts": ') + len('"amounts": ')
    quoted = amounts.replace('"', '\\"')
    path.write_text(f'{written[:start]}"{quoted}"\n}}')
    assert again(store).read() == {}
    assert SERVER in caplog.text


def test_allocations_that_cant_be_written_count_until_the_restart(
    store: rebuild.RebuildAllocations,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pathlib.Path(store.path).parent.write_text("a file")
    store.put(SERVER, ALLOCATIONS)
    assert "lost when this service ends" in caplog.text
    assert store.read() == {SERVER: ALLOCATIONS}
    store.remove(SERVER)
    assert store.read() == {}


def test_an_unlistable_directory_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "booked").write_text("a file")
    assert rebuild.RebuildAllocations(str(tmp_path)).read() == {}
    assert "can't be read" in caplog.text
