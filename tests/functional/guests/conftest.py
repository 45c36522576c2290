# SPDX-License-Identifier: Apache-2.0
"""Kernel and libvirt of small guests; each is started once."""

import pathlib
from collections.abc import Iterator

import libvirt
import pytest

from tests.support.guests import boot_files, embedded


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the root of Debian's kernel for virtual machines."""
    if obstacle := boot_files.find_obstacle():
        pytest.skip(obstacle)
    return boot_files.fetch_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="session")
def files(
    kernel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> boot_files.BootFiles:
    return boot_files.build(kernel, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def qemu(
    kernel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[libvirt.virConnect]:
    with embedded.open_driver(tmp_path_factory.mktemp("qemu")) as connected:
        yield connected
