# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts whose GPUs the NVML of this process shows."""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.lab import fakehost
from tests.lab.fakehost import nvml


@contextlib.contextmanager
def mounted(
    spec: fakehost.HostSpec, root: pathlib.Path
) -> Iterator[fakehost.Controller]:
    """Mount a host below a directory, with its GPUs in NVML.

    The test is skipped where pynvml or FUSE is missing.
    """
    pytest.importorskip("pynvml")
    if reason := fakehost.missing():
        pytest.skip(reason)
    with fakehost.simulated_sysfs(spec, root) as controller:
        nvml.load(controller)
        yield controller
