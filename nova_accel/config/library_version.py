# SPDX-License-Identifier: Apache-2.0
"""Version of the installed library."""

import importlib.metadata


def read() -> str:
    """Return the version of the installed nova-accel, or ``unknown``."""
    try:
        return importlib.metadata.version("nova-accel")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
