# SPDX-License-Identifier: Apache-2.0
"""Claims file of nova-compute, book.json, for other processes.

The kernel's files don't show the consumer of a partition: a partition
without a claim must be reserved. Nova-compute publishes its claims so that
``placement-sync`` and the audit report the same inventories. It never
reads the file itself.
"""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.host.state import directories
from nova_accel.model import providers, strict_json

LOG = logging.getLogger(__name__)

FORMAT = 1
_NAME = "book.json"
_MODE = 0o644
# Half a kilobyte for each claim.
_MAX_BYTES = 64 << 20
# Fields of a claim that a provider tree or an audit needs: texts.
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
# Starts of a planned partition and GPU instance: a number, or null.
_STARTS = ("start", "instance_start")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedClaims:
    """Claims of one compute node, as nova-compute published them.

    ``root`` is the node's provider, ``claims`` those of its servers,
    ``occupied`` the addresses of functions assigned to its guests. If
    ``is_known`` is False the file could not be used; ``reason`` is why. A
    claim has only the fields in the file; the others are defaults.
    """

    root: providers.ProviderRoot | None = None
    claims: tuple[model.Claim, ...] = ()
    occupied: frozenset[str] = frozenset()
    is_known: bool = False
    reason: str = ""


class ClaimsFile:
    """Published claims, in ``book.json`` below ``state_dir``. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Use this directory; the first write creates it."""
        self.path = os.path.join(state_dir, _NAME)
        self._lock = threading.Lock()
        self._last_content: object = None
        self._is_failure_logged = False

    def write(
        self,
        root: providers.ProviderRoot,
        claims: Iterable[model.Claim],
        occupied: Iterable[str],
    ) -> None:
        """Replace the file atomically; any user may read it.

        An unchanged file is not written again. A failure is logged once
        and not raised.
        """
        content = _content(root, claims, occupied)
        with self._lock:
            if content == self._last_content and os.path.exists(self.path):
                return
            try:
                self._replace(content)
            except OSError as error:
                self._log_failure(error)
            else:
                self._last_content = content
                self._is_failure_logged = False

    def read(self) -> RecordedClaims:
        """Return the published claims; ``is_known`` is False without."""
        try:
            text = directories.read_path(self.path, _MAX_BYTES).decode()
            return _parse(strict_json.loads(text))
        except FileNotFoundError:
            return RecordedClaims(reason=f"there is no {self.path}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            return RecordedClaims(reason=f"{self.path} can't be used: {error}")

    def _replace(self, content: Mapping[str, object]) -> None:
        text = json.dumps(content, indent=1)
        directories.replace_file(
            self.path, text.encode(), _MODE, make_parents=True
        )

    def _log_failure(self, error: OSError) -> None:
        if not self._is_failure_logged:
            LOG.warning(
                "%s can't be written (%s): placement-sync takes this host's"
                " partitions for unclaimed; make [nova_accel] state_dir"
                " writable",
                self.path,
                error,
            )
        self._is_failure_logged = True


def _content(
    root: providers.ProviderRoot,
    claims: Iterable[model.Claim],
    occupied: Iterable[str],
) -> dict[str, object]:
    return {
        "format": FORMAT,
        "root": {"name": root.name, "uuid": root.uuid},
        "claims": [
            {name: getattr(claim, name) for name in (*_TEXTS, *_STARTS)}
            | {
                "state": claim.state.value,
                "is_allocated": claim.is_allocated,
                "unallocated": dict(sorted(claim.unallocated)),
            }
            for claim in sorted(claims, key=lambda c: (c.consumer, c.slot))
        ],
        "occupied": sorted(occupied),
    }


def _parse(content: Mapping[str, Any]) -> RecordedClaims:
    """Return the claims in the content of a file.

    :raises ValueError: the format is another one.
    :raises LookupError: a field is missing.
    :raises TypeError: a field has another type.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"its format {content['format']!r} is not {FORMAT}")
    return RecordedClaims(
        root=providers.ProviderRoot(
            name=_text(content["root"], "name"),
            uuid=_text(content["root"], "uuid"),
        ),
        claims=tuple(_claim(record) for record in content["claims"]),
        occupied=frozenset(map(str, content["occupied"])),
        is_known=True,
    )


def _claim(record: Mapping[str, Any]) -> model.Claim:
    texts: dict[str, Any] = {name: _text(record, name) for name in _TEXTS}
    starts: dict[str, Any] = {name: _start(record, name) for name in _STARTS}
    return model.Claim(
        state=model.ClaimState(record["state"]),
        # Files of older versions lack these two.
        is_allocated=record.get("is_allocated") is not False,
        unallocated=tuple(
            (str(name), int(amount))
            for name, amount in record.get("unallocated", {}).items()
        ),
        **texts,
        **starts,
    )


def _start(record: Mapping[str, Any], name: str) -> int | None:
    start = record.get(name)  # files of older versions lack it
    if start is not None and not isinstance(start, int):
        raise TypeError(f"{name} is not a number: {start!r}")
    return start


def _text(record: Mapping[str, Any], name: str) -> str:
    text = record[name]
    if not isinstance(text, str):
        raise TypeError(f"{name} is not a text: {text!r}")
    return text
