# SPDX-License-Identifier: Apache-2.0
"""Texts of the notes on drained devices."""

import datetime

import pytest

from placement_sync.fleet.devices import drain_notes

NOW = datetime.datetime(2026, 5, 4, 6, tzinfo=datetime.UTC)
SINCE = "2026-05-02T05:00:00+00:00"
Note = drain_notes.DrainNote


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (Note(reason="fan fails", author="ops", since=SINCE),
         "fan fails (ops, 2d)"),
        (Note(reason="fan fails", author="ops"), "fan fails (ops)"),
        (Note(reason="fan fails", since=SINCE), "fan fails (2d)"),
        (Note(reason="fan fails"), "fan fails"),
        (Note(author="ops"), "- (ops)"),
        (Note(unknown="host refuses", detail="by its policy"),
         "reason unknown: host refuses"),
    ],
)  # fmt: skip
def test_a_note_has_what_is_known(
    note: drain_notes.DrainNote, text: str
) -> None:
    assert note.describe(NOW) == text


@pytest.mark.parametrize(
    ("since", "age"),
    [
        ("2026-05-04T05:59:01+00:00", "0m"),
        ("2026-05-04T05:59:00+00:00", "1m"),
        ("2026-05-04T05:00:00+00:00", "1h"),
        ("2026-05-03T06:00:01+00:00", "23h"),
        ("2026-05-03T08:00:00+02:00", "1d"),
        ("2025-05-04T06:00:00+00:00", "365d"),
        # The clock of the host is ahead.
        ("2026-05-04T06:00:09+00:00", "0m"),
        ("2026-05-02T05:00:00", ""),
        ("two days ago", ""),
        ("", ""),
    ],
)
def test_an_age_has_its_largest_unit(since: str, age: str) -> None:
    assert drain_notes.format_age(since, NOW) == age


def test_notes_of_a_device_and_of_its_card_are_one_text() -> None:
    card, region = Note(reason="fan fails"), Note(reason="it is sold")
    text = drain_notes.describe_all([card, region, card], NOW)
    assert text == "fan fails; it is sold"
