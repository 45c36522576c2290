# SPDX-License-Identifier: Apache-2.0
"""Entry points of installed packages, read once in a process.

Python reads the metadata of all packages at each call. That was three
quarters of the processor time of the tests of ``doctor``, and a nova-compute
that starts calls it eight times. Packages that a test puts on ``sys.path`` are
read.
"""

import functools
import sys
from importlib import metadata
from typing import Any

_read_all = metadata.entry_points


def read(**selected: str) -> Any:
    """Return entry points, as ``importlib.metadata.entry_points`` does."""
    return _read(tuple(sys.path), **selected)


@functools.cache
def _read(_path: tuple[str, ...], **selected: str) -> Any:
    return _read_all(**selected)
