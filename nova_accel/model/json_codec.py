# SPDX-License-Identifier: Apache-2.0
"""Codec between dataclasses and JSON documents with a version.

Files below ``state_dir``, attachments in system_metadata and the messages of
a live migration use it.

A release that adds a field gives it a default and keeps the version: unknown
fields are ignored, and missing ones have their defaults. A release that
changes the meaning of a field raises the version: other releases refuse the
document.
"""

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping, Set
from typing import Any, Generic, TypeVar

from nova_accel.model import strict_json

T = TypeVar("T")


class UnknownVersionError(ValueError):
    """Another release wrote the document in a format of its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """JSON format of the documents of a dataclass.

    ``key`` is the name of the version in a document. ``unversioned`` is the
    version of documents without this key, None if every release wrote it.
    """

    kind: type[T]
    version: int = 1
    key: str = "format"
    unversioned: int | None = None

    def encode(self, record: T, indent: int | None = None) -> str:
        """Return the document of a record.

        :param indent: spaces per level; None for a single line.
        """
        return json.dumps(
            {self.key: self.version} | to_fields(record),
            indent=indent,
            separators=None if indent else (",", ":"),
            default=_to_json,
        )

    def decode(self, text: str | bytes) -> T:
        """Return the record of a document.

        :raises UnknownVersionError: the document has another version.
        :raises ValueError: it is damaged, or a field has another type.
        """
        record: T = decode(self.kind, self.load(text))
        return record

    def load(self, text: str | bytes) -> dict[str, Any]:
        """Return the fields of a document, not decoded.

        :raises UnknownVersionError: the document has another version.
        :raises ValueError: it is no JSON object, or not in UTF-8.
        """
        if isinstance(text, bytes):
            text = text.decode()
        fields: dict[str, Any] = _check(dict, strict_json.loads(text), "it")
        version = fields.get(self.key, self.unversioned)
        if version != self.version:
            raise UnknownVersionError(
                f"its {self.key} is {version!r}, and this nova-accel reads"
                f" {self.version}; use the release that wrote it"
            )
        return fields


def to_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by their names in JSON."""
    return {
        _get_key(field): getattr(record, field.name)
        for field in dataclasses.fields(record)
    }


def decode(kind: Any, value: Any, where: str = "") -> Any:
    """Return a value of JSON as a value of a type.

    :param kind: dataclass, enumeration, text, number, truth value, a
        ``Mapping`` by text, a ``tuple`` or ``frozenset`` of one type, or one
        of these or None. A field with the metadata ``key`` has this name in
        JSON.
    :param where: path of the value, for the error.
    :raises ValueError: the value has another type.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else decode(inner[0], value, where)
    if origin is Mapping:
        items = _check(dict, value, where).items()
        return {n: decode(inner[1], v, f"{where}.{n}") for n, v in items}
    if origin in (tuple, frozenset):
        numbered = enumerate(_check(list, value, where))
        return origin(
            decode(inner[0], v, f"{where}[{n}]") for n, v in numbered
        )
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, _check(dict, value, where), where)
    if issubclass(kind, enum.Enum):
        return kind(value)
    return _check(kind, value, where)


def _decode_fields(kind: Any, fields: Mapping[str, Any], where: str) -> Any:
    values = {}
    for field, hint in _list_fields(kind):
        key = _get_key(field)
        path = f"{where}.{key}" if where else key
        if key in fields:
            values[field.name] = decode(hint, fields[key], path)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path} is missing")
    return kind(**values)


@functools.cache
def _list_fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass with their resolved types."""
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _get_key(field: dataclasses.Field[Any]) -> str:
    key: str = field.metadata.get("key", field.name)
    return key


def _check(kind: type, value: Any, where: str) -> Any:
    """Return a value of exactly this type; an integer also as a float."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where} is out of range") from None
    if type(value) is not kind:
        raise ValueError(f"{where} is no {kind.__name__}: {value!r:.80}")
    return value


def _to_json(value: Any) -> Any:
    """Return a value that ``json`` can't write as one that it can."""
    if dataclasses.is_dataclass(value):
        return to_fields(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(f"{value!r} has no form in JSON")
