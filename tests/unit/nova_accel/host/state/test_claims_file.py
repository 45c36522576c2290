# SPDX-License-Identifier: Apache-2.0
"""The claims file is replaced atomically, and read or unknown."""

import json
import logging
import os
import pathlib
import stat
import tempfile
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.host.state import claims_file
from nova_accel.model import providers

ROOT = providers.ProviderRoot(
    name="compute-1", uuid="aaaaaaaa-0000-4000-8000-00000000000a"
)


def claim(slot: str, **fields: Any) -> model.Claim:
    values: dict[str, Any] = {
        "consumer": "server-1",
        "provider": "provider-1",
        "device": "0000:3b:00.0",
        "profile": "GRID T4-4Q",
        "slot": slot,
        "parent": "0000:3b:00.0",
        "handle": f"handle of {slot}",
        "technology": "mdev",
        "state": model.ClaimState.MADE,
    }
    return model.Claim(**values | fields)


def test_the_claims_file_survives_the_round_trip(
    tmp_path: pathlib.Path,
) -> None:
    """The directory is created; every user can read the file."""
    place = tmp_path / "accel" / "state"
    file = claims_file.ClaimsFile(str(place))
    assert not file.read().is_known
    planned = {"state": model.ClaimState.PLANNED, "start": 8}
    claims = (
        claim("slot-0"),
        claim("slot-1", **planned),
        claim("slot-2", **planned, instance_start=0),
        claim("slot-3", is_allocated=False),
        claim("slot-4", is_allocated=False, unallocated={"VGPU": 1}),
    )
    file.write(ROOT, claims, {"0000:71:00.0"})
    assert claims_file.ClaimsFile(
        str(place)
    ).read() == claims_file.RecordedClaims(
        root=ROOT,
        claims=claims,
        occupied=frozenset({"0000:71:00.0"}),
        is_known=True,
    )
    assert os.listdir(place) == ["book.json"]
    mode = (place / "book.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o644


def test_unchanged_claims_are_not_written(tmp_path: pathlib.Path) -> None:
    file = claims_file.ClaimsFile(str(tmp_path))
    file.write(ROOT, [claim("a"), claim("b")], ["2", "1"])
    before = os.stat(file.path).st_ino
    file.write(ROOT, [claim("b"), claim("a")], ["1", "2"])
    assert os.stat(file.path).st_ino == before
    file.write(ROOT, [claim("b")], ["1", "2"])
    assert file.read().claims == (claim("b"),)
    os.unlink(file.path)
    file.write(ROOT, [claim("b")], ["1", "2"])
    assert file.read().is_known


def test_a_failed_write_is_logged_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "accel").write_text("another file")
    file = claims_file.ClaimsFile(str(tmp_path / "accel"))
    with caplog.at_level(logging.WARNING):
        file.write(ROOT, [], [])
        file.write(ROOT, [claim("a")], [])
    (record,) = caplog.records
    assert "state_dir" in record.getMessage()
    (tmp_path / "accel").unlink()
    file.write(ROOT, [claim("a")], [])
    assert file.read().claims == (claim("a"),)
    assert len(caplog.records) == 1
    # The next failure is another one.
    (tmp_path / "accel" / claims_file.NAME).unlink()
    (tmp_path / "accel").rmdir()
    (tmp_path / "accel").write_text("another file")
    file.write(ROOT, [claim("a")], [])
    assert len(caplog.records) == 2


GOOD = {
    "format": 1,
    "root": {"name": "compute-1", "uuid": ROOT.uuid},
    "claims": [
        {
            "consumer": "server-1",
            "provider": "provider-1",
            "device": "0000:3b:00.0",
            "profile": "GRID T4-4Q",
            "slot": "slot-0",
            "parent": "0000:3b:00.0",
            "handle": "handle of slot-0",
            "technology": "mdev",
            "state": "made",
        }
    ],
    "occupied": [],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '"text"',
        '{"format": 2}',
        json.dumps(GOOD)[:-9],
        json.dumps(GOOD | {"format": 2}),
        json.dumps(GOOD | {"root": None}),
        json.dumps(GOOD | {"root": {"name": 1, "uuid": "x"}}),
        json.dumps(GOOD | {"claims": 5}),
        json.dumps(GOOD | {"claims": ["text"]}),
        json.dumps(GOOD | {"claims": [{"consumer": "x"}]}),
        json.dumps(GOOD).replace("made", "unmade"),
        json.dumps(GOOD).replace('"made"', '"made", "start": "8"'),
        json.dumps(GOOD | {"occupied": None}),
        "\0\xff",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_unknown_with_a_reason(
    tmp_path: pathlib.Path, text: str
) -> None:
    file = claims_file.ClaimsFile(str(tmp_path))
    pathlib.Path(file.path).write_text(json.dumps(GOOD))
    assert file.read().is_known
    pathlib.Path(file.path).write_text(text, encoding="latin-1")
    recorded = file.read()
    assert not recorded.is_known
    assert not recorded.claims
    assert file.path in recorded.reason


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["format", "root", "claims", "occupied", "name"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_without_an_error(content: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = claims_file.ClaimsFile(place)
        pathlib.Path(file.path).write_text(json.dumps(content))
        assert isinstance(file.read(), claims_file.RecordedClaims)


def test_a_reader_sees_the_old_or_the_new_file(tmp_path: pathlib.Path) -> None:
    file = claims_file.ClaimsFile(str(tmp_path))
    writes = [[claim(f"slot-{n}") for n in range(size)] for size in (1, 60)]
    file.write(ROOT, writes[0], [])
    done = threading.Event()

    def rewrite() -> None:
        for n in range(200):
            file.write(ROOT, writes[n % 2], [])
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not done.is_set():
        recorded = file.read()
        assert recorded.is_known, recorded.reason
        assert len(recorded.claims) in (1, 60)
    writer.join()
