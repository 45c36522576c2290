# SPDX-License-Identifier: Apache-2.0
"""Dataclasses survive JSON; other documents are errors with a path."""

import dataclasses
import enum
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.model import json_codec


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    size: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    parts: tuple[Part, ...]
    colour: Colour = Colour.RED
    names: frozenset[str] = frozenset()
    amounts: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict
    )
    seconds: float = dataclasses.field(default=0.0, metadata={"key": "time"})
    is_done: bool = False


FORMAT = json_codec.Format(kind=Whole, version=3)
GOOD = {"format": 3, "parts": [{"name": "a"}]}
WHOLE = Whole(parts=(Part(name="a"),))


WHOLES = st.builds(
    Whole,
    parts=...,
    colour=...,
    names=...,
    amounts=...,
    seconds=st.floats(allow_nan=False, allow_infinity=False),
    is_done=...,
)


@given(WHOLES, st.sampled_from([None, 2]))
def test_a_record_survives_the_round_trip(
    record: Whole, indent: int | None
) -> None:
    assert FORMAT.decode(FORMAT.encode(record, indent)) == record


def test_defaults_and_unknown_fields() -> None:
    assert FORMAT.decode(json.dumps(GOOD)) == WHOLE
    assert FORMAT.decode(json.dumps(GOOD | {"new": {}}).encode()) == WHOLE


def test_a_field_has_its_key_in_json() -> None:
    fields = json.loads(FORMAT.encode(WHOLE))
    assert fields["time"] == 0.0
    assert FORMAT.decode(json.dumps(GOOD | {"time": 2})).seconds == 2.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parts": None}, "parts is no list: None"),
        ({"parts": [{"name": "a"}, {}]}, r"parts\[1\].name is missing"),
        ({"parts": [{"name": 1}]}, r"parts\[0\].name is no str: 1"),
        ({"parts": [{"name": "a", "size": True}]}, r"\.size is no int"),
        ({"colour": "green"}, "colour is no Colour: 'green'"),
        ({"colour": []}, "colour is no Colour: list of 0"),
        ({"names": "text"}, "names is no list"),
        ({"amounts": {"a": {"b": "1"}}}, "amounts.a.b is no int"),
        ({"time": "1"}, "time is no float"),
        ({"time": 10**400}, "time is out of range"),
        ({"is_done": 1}, "is_done is no bool"),
    ],
)
def test_other_types_are_refused_with_the_path(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FORMAT.decode(json.dumps(GOOD | fields))


@pytest.mark.parametrize(
    ("version", "unversioned", "is_known"),
    [
        (3, None, True),
        (2, None, False),
        ("3", None, False),
        (None, None, False),
        (None, 3, True),
        (None, 2, False),
    ],
)
def test_only_the_format_of_this_release_is_read(
    version: object, unversioned: int | None, is_known: bool
) -> None:
    fields = {k: v for k, v in GOOD.items() if k != "format"}
    if version is not None:
        fields["format"] = version
    format_ = dataclasses.replace(FORMAT, unversioned=unversioned)
    if is_known:
        assert format_.decode(json.dumps(fields)) == WHOLE
        return
    with pytest.raises(json_codec.UnknownVersionError, match="reads 3"):
        format_.decode(json.dumps(fields))
