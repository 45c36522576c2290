# SPDX-License-Identifier: Apache-2.0
"""JSON decoder for untrusted files and messages.

Python's decoder accepts ``Infinity``, ``NaN`` and ``1e999``, which are not
JSON (RFC 8259, section 6); ``int()`` of them raises OverflowError later. It
raises RecursionError for deeply nested brackets. This one raises ValueError
for all of them, as for any other malformed text.
"""

import json
import math
from typing import Any


def loads(text: str | bytes, **options: Any) -> Any:
    """Return the decoded JSON text.

    :param options: other options of ``json.loads``.
    :raises ValueError: the text is not JSON, or has a number that is not
        finite.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_parse_finite, **options
        )
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number in JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number
