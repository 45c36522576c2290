# SPDX-License-Identifier: Apache-2.0
"""Steps that are done again only when what they are made from changes."""

import hashlib
import pathlib
from collections.abc import Callable, Iterable

from tests.lab.vm import layout


def digest_of(inputs: Iterable[str | pathlib.Path]) -> str:
    """Return a SHA-256 over texts and the content of files."""
    total = hashlib.sha256()
    for item in inputs:
        data = item.encode() if isinstance(item, str) else item.read_bytes()
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()


def ensure(
    place: layout.Layout,
    name: str,
    inputs: Iterable[str | pathlib.Path],
    build: Callable[[], None],
    outputs: Iterable[pathlib.Path],
) -> bool:
    """Run ``build`` unless its outputs exist and were made from ``inputs``.

    Returns whether it ran.
    """
    stamp = place.stamps / name
    digest = digest_of(inputs)
    made = stamp.read_text() if stamp.exists() else ""
    if made == digest and all(path.exists() for path in outputs):
        return False
    stamp.unlink(missing_ok=True)
    build()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)
    return True
