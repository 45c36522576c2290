# SPDX-License-Identifier: Apache-2.0
"""JSON decoder for files and messages that others may have written.

Python's own decoder takes ``Infinity``, ``NaN`` and ``1e999``, which are no
JSON (RFC 8259, section 6); ``int()`` of these raises OverflowError later. It
raises RecursionError for brackets that are nested too deeply. Here all of
them are a ValueError, as any other malformed text.
"""

import json
import math
from typing import Any


def loads(text: str | bytes, **options: Any) -> Any:
    """Return a text decoded.

    :param options: more options of ``json.loads``.
    :raises ValueError: it is no JSON, or a number in it is not finite.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_finite, **options
        )
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number
