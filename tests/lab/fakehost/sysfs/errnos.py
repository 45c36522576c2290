# SPDX-License-Identifier: Apache-2.0
"""Errors and waits of a simulated kernel function."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NoReturn


class Blocked(Exception):
    """The write has not ended: call ``resume`` again a little later.

    ``resume`` returns when the write is done, raises Blocked when it has
    to wait on, or OSError when it failed.
    """

    def __init__(self, resume: Callable[[], None]) -> None:
        super().__init__()
        self.resume = resume


def fail(code: int) -> NoReturn:
    """Raise OSError ``code``."""
    raise OSError(code, os.strerror(code))


def parse_unsigned(data: bytes, bits: int = 64) -> int:
    """Return the number as kstrtouint() reads it (base 0).

    One trailing newline is allowed, blanks are not. Raises OSError EINVAL
    for no number, ERANGE for one that does not fit.
    """
    text = data.decode("ascii", "replace").removesuffix("\n")
    text = text.removeprefix("+")
    if not text or not text[0].isdigit() or "_" in text:
        fail(errno.EINVAL)
    octal = text[0] == "0" and len(text) > 1 and text[1] not in "xX"
    try:
        value = int(text, 8) if octal else int(text, 0)
    except ValueError:
        fail(errno.EINVAL)
    if value >> bits:
        fail(errno.ERANGE)
    return value


def chain(first: Callable[[], None], then: Callable[[], None]) -> None:
    """Run ``first`` and, when it is done, ``then``; either may block."""
    try:
        first()
    except Blocked as blocked:
        resume = blocked.resume
        raise Blocked(lambda: chain(resume, then)) from None
    then()
