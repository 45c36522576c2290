# SPDX-License-Identifier: Apache-2.0
"""English of what people read, and its order."""

import re


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, for example ``1 device``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def natural_key(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts numbers in texts as numbers: 2 before 10."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)
