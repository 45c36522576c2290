# SPDX-License-Identifier: Apache-2.0
"""Codec between dataclasses and JSON documents with a version.

Files below ``state_dir``, attachments in system_metadata and the messages of
a live migration use it.

A release that adds a field gives it a default and keeps the version: unknown
fields are ignored, and missing ones have their defaults. A release that
changes the meaning of a field raises the version: other releases refuse the
document.

The decoder is for untrusted files and messages: Python's own accepts
``Infinity``, ``NaN`` and ``1e999``, which are not JSON (RFC 8259, section 6;
``int()`` of them raises OverflowError later), and raises RecursionError for
deeply nested brackets. This one raises ValueError for all of them.
"""

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Set, Sized
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Metadata = Mapping[str, Any]

# Keys of a field's metadata: the pattern of its texts, and the items of its
# list in place of ``Limits.items``. Both are checked with limits only.
_PATTERN, _ITEMS = "pattern", "items"
_NO_METADATA: Metadata = types.MappingProxyType({})
# Numbers of a device fit into 64 bits with a sign.
_MAX_BITS = 63


class UnknownVersionError(ValueError):
    """Another release wrote the document in a format of its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of documents of unknown senders.

    ``text`` are the characters of a text, ``items`` those of a list and
    ``rows`` those of all lists together. Integers have at most 64 bits.
    """

    text: int
    items: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """JSON format of the documents of a dataclass.

    ``key`` is the name of the version in a document. ``unversioned`` is the
    version of documents without this key, None if every release wrote it.
    ``limits`` are None for documents of this library's own processes.
    """

    kind: type[T]
    version: int = 1
    key: str = "format"
    unversioned: int | None = None
    limits: Limits | None = None

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
        return self.decode_fields(self.load(text))

    def decode_fields(self, document: Any) -> T:
        """Return the record of a document whose JSON is decoded already.

        :raises UnknownVersionError: the document has another version.
        :raises ValueError: it is no object, exceeds a limit, or a field has
            another type.
        """
        fields = self._check_version(document)
        record: T = _Decoder(self.limits).decode(self.kind, fields, "")
        return record

    def load(self, text: str | bytes) -> dict[str, Any]:
        """Return the fields of a document, not decoded.

        :raises UnknownVersionError: the document has another version.
        :raises ValueError: it is no JSON object, or not in UTF-8.
        """
        if isinstance(text, bytes):
            text = text.decode()
        return self._check_version(loads(text))

    def _check_version(self, document: Any) -> dict[str, Any]:
        fields: dict[str, Any] = _check(dict, document, "it")
        version = fields.get(self.key, self.unversioned)
        if version != self.version:
            raise UnknownVersionError(
                f"its {self.key} is {quote(version)}, and this nova-accel"
                f" reads {self.version}; use the release that wrote it"
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
    return _Decoder(None).decode(kind, value, where)


def quote(value: object) -> str:
    """Return a value for an error, of at most 80 characters.

    Takes the same time for each value: lists and objects are not printed,
    and an integer of many digits is not converted.
    """
    if isinstance(value, str | bytes):
        return f"{value[:80]!r:.80}"
    if isinstance(value, Sized):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"int of {value.bit_length()} bits"
    return f"{value!r:.80}"


class _Decoder:
    """Decodes one document, and counts the items of all its lists."""

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits
        self._rows = 0

    def decode(
        self, kind: Any, value: Any, where: str, own: Metadata = _NO_METADATA
    ) -> Any:
        """Return a value as one of a type.

        :param own: metadata of its field.
        """
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is types.UnionType:
            kind = inner[0]
            return (
                None if value is None else self.decode(kind, value, where, own)
            )
        if origin in (Mapping, tuple, frozenset):
            return self._decode_items(origin, inner, value, where, own)
        if dataclasses.is_dataclass(kind):
            return self._decode_fields(kind, _check(dict, value, where), where)
        if issubclass(kind, enum.Enum):
            return _find_member(kind, value, where)
        return self._check_bounds(_check(kind, value, where), where, own)

    def _decode_items(
        self, origin: Any, inner: Any, value: Any, where: str, own: Metadata
    ) -> Any:
        """Return a mapping, a tuple or a set."""
        if origin is Mapping:
            items = self._take(dict, value, where, own).items()
            return {
                n: self.decode(inner[1], v, f"{where}.{n}") for n, v in items
            }
        numbered = enumerate(self._take(list, value, where, own))
        own = own if _PATTERN in own else _NO_METADATA
        return origin(
            self.decode(inner[0], v, f"{where}[{n}]", own) for n, v in numbered
        )

    def _decode_fields(
        self, kind: Any, fields: Mapping[str, Any], where: str
    ) -> Any:
        values = {}
        for field, hint in _list_fields(kind):
            key = _get_key(field)
            path = f"{where}.{key}" if where else key
            if key in fields:
                values[field.name] = self.decode(
                    hint, fields[key], path, field.metadata
                )
            elif field.default is field.default_factory is dataclasses.MISSING:
                raise ValueError(f"{path} is missing")
        return kind(**values)

    def _take(self, kind: type, value: Any, where: str, own: Metadata) -> Any:
        """Return a list or object, and count its items.

        :raises ValueError: it, or the document with it, has too many.
        """
        items = _check(kind, value, where)
        if self._limits is None:
            return items
        self._rows += len(items)
        limit = own.get(_ITEMS, self._limits.items)
        if len(items) > limit or self._rows > self._limits.rows:
            raise ValueError(
                f"{where} has {len(items)} items; at most {limit}, and"
                f" {self._limits.rows} in all lists, are read"
            )
        return items

    def _check_bounds(self, value: Any, where: str, own: Metadata) -> Any:
        """Return a text or a number that is within the limits."""
        if self._limits is None:
            return value
        if isinstance(value, str):
            if len(value) > self._limits.text:
                raise ValueError(f"{where} has {len(value)} characters")
            if _PATTERN in own and not own[_PATTERN].fullmatch(value):
                raise ValueError(f"{where} is malformed: {quote(value)}")
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise ValueError(f"{where} is out of range: {quote(value)}")
        return value


def _find_member(kind: type[enum.Enum], value: Any, where: str) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(
            f"{where} is no {kind.__name__}: {quote(value)}"
        ) from None


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
        raise ValueError(f"{where} is no {kind.__name__}: {quote(value)}")
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
