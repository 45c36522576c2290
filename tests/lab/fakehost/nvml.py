# SPDX-License-Identifier: Apache-2.0
"""Fake NVML in this process, which reads a simulated kernel."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tests.lab.fakehost import standins
from tests.lab.fakehost.control.controller import ENVIRONMENT, Controller
from tests.lab.fakehost.mount import REPOSITORY

#: Where the library is built: beside what else the fake host compiles.
BUILT = (
    Path(os.environ.get("NOVA_ACCEL_LAB", REPOSITORY / ".lab"))
    / "fakehost/standins"
)


def load(host: Controller) -> Path:
    """Let this process load the NVML of ``host`` from now on.

    Returns the library. It stays loaded for the life of the process, but
    a later call may name another host; NVML must be shut down meanwhile.
    """
    library = standins.build_nvml(BUILT)
    os.environ[ENVIRONMENT] = str(host.socket)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return library
