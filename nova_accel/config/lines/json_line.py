# SPDX-License-Identifier: Apache-2.0
"""JSON object of one line of a configuration option."""

from collections.abc import Collection
from typing import Any

from nova_accel import errors
from nova_accel.model import json_codec


class _JsonObject(dict[str, Any]):
    """JSON object with all its keys, duplicates included."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.names = [name for name, _ in pairs]


def parse(
    option: str, line: str, keys: Collection[str], example: str
) -> dict[str, Any]:
    """Return the keys and values of a line.

    :param option: its name, for errors.
    :param keys: those that a line may have.
    :param example: a line, for errors.
    :raises ConfigurationError: the line is not a JSON object, or has a
        duplicate or unknown key.
    """
    try:
        pairs = json_codec.loads(line, object_pairs_hook=_JsonObject)
    except ValueError as error:
        raise errors.ConfigurationError(
            option, line, f"write one JSON object a line ({error})"
        ) from error
    if not isinstance(pairs, _JsonObject):
        raise errors.ConfigurationError(
            option, line, f"write a JSON object, as {example}"
        )
    for key in pairs.names:
        hint = ""
        if key not in keys:
            hint = f"unknown key {key!r}; use {', '.join(keys)}"
        elif pairs.names.count(key) > 1:
            hint = f"{key} is there twice; remove one"
        if hint:
            raise errors.ConfigurationError(option, line, hint)
    return dict(pairs)
