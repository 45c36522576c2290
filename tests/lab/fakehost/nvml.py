# SPDX-License-Identifier: Apache-2.0
"""NVML in this process: the stand-in, told which kernel to ask."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

from tests.lab.fakehost import standins
from tests.lab.fakehost.controller import ENVIRONMENT, Controller

#: Where the library is built, once for all tests of a user.
BUILT = Path(tempfile.gettempdir()) / f"fakehost-nvml-{os.getuid()}"


def load(host: Controller) -> Path:
    """Let whoever asks for NVML from now on get that of ``host``.

    Returns the library. It stays loaded for the life of the process, but
    a later call may name another host; NVML must be shut down meanwhile.
    """
    library = standins.build_nvml(BUILT)
    os.environ[ENVIRONMENT] = str(host.socket)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return library
