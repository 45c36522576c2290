# SPDX-License-Identifier: Apache-2.0
"""Whole hosts, recorded or put together from the kernel's documentation.

One JSON object a host, packed: ``meta`` says where it is from, ``tree``
has by directory what is in it: a text, or an object with one of ``text``
(and its ``mode``), ``link``, ``hex`` (a binary file), ``err`` (the errno
of a failed read), ``wo`` (a file that can't be read), ``dir``. ``nvml`` is
NVML's answer, where a host was captured with it.
"""

import errno
import gzip
import json
import pathlib
from typing import Any

from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedFiles,
    RecordedLink,
)
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_state
from nova_accel.host.sysfs import fs

HERE = pathlib.Path(__file__).parent
NAMES = tuple(sorted(p.name[:-8] for p in HERE.glob("*.json.gz")))


def load(name: str) -> RecordedFiles:
    """Return a host's files."""
    host = _load(name)
    records: dict[str, Record] = {}
    for directory, entries in host["tree"].items():
        records.setdefault(directory, RecordedDirectory())
        for entry, value in entries.items():
            path = f"{directory}/{entry}"
            records[path] = _read_head(path, value) or _record(value)
    return RecordedFiles(records)


def load_gpus(name: str) -> nvml_gpus.NvmlGpus:
    """Return a host's GPUs, none where NVML was not asked."""
    plain = _load(name).get("nvml")
    return gpu_state.from_plain(plain) if plain else nvml_gpus.NvmlGpus({})


def _load(name: str) -> dict[str, Any]:
    packed = (HERE / f"{name}.json.gz").read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(packed))
    return loaded


def _read_head(path: str, value: str | dict[str, Any]) -> bytes:
    """Return recorded configuration space, empty for any other file."""
    match value:
        case {"hex": str(digits)} if fs.is_config_space(path):
            return bytes.fromhex(digits)
    return b""


def _record(value: str | dict[str, Any]) -> Record:
    match value:
        case str(text) | {"text": str(text)}:
            return text
        case {"link": str(target)}:
            return RecordedLink(target)
        case {"err": str(name)}:
            return int(getattr(errno, name))
        case {"dir": _}:
            return RecordedDirectory()
        case {"hex": _}:
            return errno.EILSEQ  # the error of decoding it as text
        case {"wo": _}:
            return errno.EIO  # the error of sysfs without a show method
    raise ValueError(f"{value!r} is no file")
