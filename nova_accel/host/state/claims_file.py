# SPDX-License-Identifier: Apache-2.0
"""Claims file of nova-compute, book.json, for other processes.

The kernel's files don't show the consumer of a partition: a partition
without a claim must be reserved. Nova-compute publishes its claims so that
``placement-sync`` and the audit report the same inventories. It never
reads the file itself.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Iterable

from nova_accel import model
from nova_accel.host.state import directories
from nova_accel.model import json_codec, providers

LOG = logging.getLogger(__name__)

NAME = "book.json"
_MODE = 0o644
_MDEV = "mdev"
# Half a kilobyte for each claim.
_MAX_BYTES = 64 << 20


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimsDocument:
    """Content of the file."""

    root: providers.ProviderRoot
    claims: tuple[model.PublishedClaim, ...]
    occupied: frozenset[str]


_FORMAT = json_codec.Format(kind=_ClaimsDocument)
_FIELDS = tuple(f.name for f in dataclasses.fields(model.PublishedClaim))


class ClaimsFile:
    """Published claims, in ``book.json`` below ``state_dir``. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Use this directory; the first write creates it."""
        self.path = os.path.join(state_dir, NAME)
        self._lock = threading.Lock()
        self._last_document: _ClaimsDocument | None = None
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
        document = _ClaimsDocument(
            root=root,
            claims=tuple(
                _publish(claim)
                for claim in sorted(claims, key=lambda c: (c.consumer, c.slot))
            ),
            occupied=frozenset(occupied),
        )
        with self._lock:
            is_same = document == self._last_document
            if is_same and os.path.exists(self.path):
                return
            try:
                self._replace(document)
            except OSError as error:
                self._log_failure(error)
            else:
                self._last_document = document
                self._is_failure_logged = False

    def read(self) -> RecordedClaims:
        """Return the published claims; ``is_known`` is False without."""
        try:
            return parse(directories.read_path(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return RecordedClaims(reason=f"there is no {self.path}")
        except (OSError, ValueError) as error:
            return RecordedClaims(reason=f"{self.path} can't be used: {error}")

    def _replace(self, document: _ClaimsDocument) -> None:
        text = _FORMAT.encode(document, indent=1)
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


def parse(text: str | bytes) -> RecordedClaims:
    """Return the claims of the file's content.

    :raises ValueError: it is malformed.
    """
    document = _FORMAT.decode(text)
    return RecordedClaims(
        root=document.root,
        claims=tuple(map(_restore, document.claims)),
        occupied=document.occupied,
        is_known=True,
    )


def list_function_servers(claims: Iterable[model.Claim]) -> tuple[str, ...]:
    """Return the servers that have whole functions, which are not mdevs.

    Nova's own driver removes those from a guest that it defines again: it
    retains only the mdevs that it finds in the domain.
    """
    return tuple(sorted({c.consumer for c in claims if c.technology != _MDEV}))


def _publish(claim: model.Claim) -> model.PublishedClaim:
    fields = {name: getattr(claim, name) for name in _FIELDS}
    return model.PublishedClaim(**fields)


def _restore(claim: model.PublishedClaim) -> model.Claim:
    return model.Claim(**json_codec.to_fields(claim))
