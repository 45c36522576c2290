# SPDX-License-Identifier: Apache-2.0
"""Notes on drained devices, as their hosts have them."""

import dataclasses
import datetime
from collections.abc import Iterable

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainNote:
    """Reason, author and time of a drain; empty fields are not known.

    ``since`` is in ISO 8601. ``unknown`` says in a few words why the note
    could not be read, and ``detail`` in full; both are empty if it was.
    """

    reason: str = ""
    author: str = ""
    since: str = ""
    unknown: str = ""
    detail: str = ""

    def describe(self, now: datetime.datetime) -> str:
        """Return ``fan fails (ops, 2d)``, or why that is not known."""
        if self.unknown:
            return f"reason unknown: {self.unknown}"
        details = filter(None, (self.author, format_age(self.since, now)))
        in_parentheses = ", ".join(details)
        reason = self.reason or "-"  # of a note that a person has edited
        return f"{reason} ({in_parentheses})" if in_parentheses else reason


def describe_all(notes: Iterable[DrainNote], now: datetime.datetime) -> str:
    """Return the notes on a device as one text, empty without any."""
    return "; ".join(dict.fromkeys(note.describe(now) for note in notes))


def format_age(since: str, now: datetime.datetime) -> str:
    """Return the time since then in its largest unit, such as ``2d``.

    It is ``0m`` below a minute, and empty for a text that is no time.
    """
    try:
        seconds = (
            now - datetime.datetime.fromisoformat(since)
        ).total_seconds()
    except (ValueError, TypeError):
        return ""  # no time, or one without its offset from UTC
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return "0m"
