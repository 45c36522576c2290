# SPDX-License-Identifier: Apache-2.0
"""English of what people read."""


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, for example ``1 device``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
