# SPDX-License-Identifier: Apache-2.0
"""Claims file of nova-compute, book.json, for other processes.

What a partition is for can't be told from the kernel's files: a claim
books it, or it has to be reserved. Nova-compute publishes its claims, so
that whoever else reports this host reports the same. It never reads them
itself.
"""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.host.state import atomic_write, directories
from nova_accel.model import providers, strict_json

LOG = logging.getLogger(__name__)

FORMAT = 1
_NAME = "book.json"
_MODE = 0o644
# Half a kilobyte for each claim.
_MAX_BYTES = 64 << 20
#: What of a claim a provider tree and an audit need; all of it is text.
_TEXTS = (
    "consumer",
    "provider",
    "device",
    "profile",
    "slot",
    "parent",
    "handle",
    "technology",
)
#: Where what is not made yet is to stand: a number, or null.
_PLACES = ("start", "instance_start")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedClaims:
    """What nova-compute has published of one compute node.

    ``root`` is the node, ``claims`` what its servers hold, ``occupied``
    the addresses of functions that its guests have. Where ``is_known`` is
    False nothing of that can be told; ``reason`` says why. Of a claim
    there is only what the file has: its servers, device, profile, place,
    handle, state, and what of it is not allocated.
    """

    root: providers.ProviderRoot | None = None
    claims: tuple[model.Claim, ...] = ()
    occupied: frozenset[str] = frozenset()
    is_known: bool = False
    reason: str = ""


class ClaimsFile:
    """The book as a file below a state directory. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Publish in this directory; it is made when it is needed."""
        self.path = os.path.join(state_dir, _NAME)
        self._guard = threading.Lock()
        self._last: object = None
        self._is_told = False

    def write(
        self,
        root: providers.ProviderRoot,
        claims: Iterable[model.Claim],
        occupied: Iterable[str],
    ) -> None:
        """Replace the file at once, for any user to read.

        Nothing is written if it says so already. A file that can't be
        written is told of once, and stops nobody.
        """
        content = _content(root, claims, occupied)
        with self._guard:
            if content == self._last and os.path.exists(self.path):
                return
            try:
                self._replace(content)
            except OSError as error:
                self._tell(error)
            else:
                self._last, self._is_told = content, False

    def read(self) -> RecordedClaims:
        """Return what the file says; one that is not there is unknown."""
        try:
            text = directories.read_path(self.path, _MAX_BYTES).decode()
            return _parse(strict_json.loads(text))
        except FileNotFoundError:
            return RecordedClaims(reason=f"there is no {self.path}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            return RecordedClaims(reason=f"{self.path} can't be used: {error}")

    def _replace(self, content: Mapping[str, object]) -> None:
        text = json.dumps(content, indent=1)
        atomic_write.replace(self.path, text.encode(), _MODE, is_made=True)

    def _tell(self, error: OSError) -> None:
        if not self._is_told:
            LOG.warning(
                "%s can't be written (%s): a pass from outside takes this"
                " host's partitions for unbooked; mend [nova_accel]"
                " state_dir",
                self.path,
                error,
            )
        self._is_told = True


def _content(
    root: providers.ProviderRoot,
    claims: Iterable[model.Claim],
    occupied: Iterable[str],
) -> dict[str, object]:
    return {
        "format": FORMAT,
        "root": {"name": root.name, "uuid": root.uuid},
        "claims": [
            {name: getattr(claim, name) for name in (*_TEXTS, *_PLACES)}
            | {
                "state": claim.state.value,
                "is_allocated": claim.is_allocated,
                "unallocated": dict(sorted(claim.unallocated)),
            }
            for claim in sorted(claims, key=lambda c: (c.consumer, c.slot))
        ],
        "occupied": sorted(occupied),
    }


def _parse(found: Mapping[str, Any]) -> RecordedClaims:
    """Return what a file says.

    :raises ValueError: it is of another format.
    :raises LookupError: something is missing.
    :raises TypeError: something is not what it should be.
    """
    if found["format"] != FORMAT:
        raise ValueError(f"its format {found['format']!r} is not {FORMAT}")
    return RecordedClaims(
        root=providers.ProviderRoot(
            name=_text(found["root"], "name"),
            uuid=_text(found["root"], "uuid"),
        ),
        claims=tuple(_claim(record) for record in found["claims"]),
        occupied=frozenset(map(str, found["occupied"])),
        is_known=True,
    )


def _claim(record: Mapping[str, Any]) -> model.Claim:
    texts: dict[str, Any] = {name: _text(record, name) for name in _TEXTS}
    places: dict[str, Any] = {name: _place(record, name) for name in _PLACES}
    return model.Claim(
        state=model.ClaimState(record["state"]),
        # Files of older versions do not have these.
        is_allocated=record.get("is_allocated") is not False,
        unallocated=tuple(
            (str(name), int(amount))
            for name, amount in record.get("unallocated", {}).items()
        ),
        **texts,
        **places,
    )


def _place(record: Mapping[str, Any], name: str) -> int | None:
    found = record.get(name)  # a file of before has none
    if found is not None and not isinstance(found, int):
        raise TypeError(f"{name} is not a number: {found!r}")
    return found


def _text(record: Mapping[str, Any], name: str) -> str:
    found = record[name]
    if not isinstance(found, str):
        raise TypeError(f"{name} is not a text: {found!r}")
    return found
