# SPDX-License-Identifier: Apache-2.0
"""Kernel and libvirt of small guests; each is started once."""

import pathlib
from collections.abc import Iterator

import libvirt
import pytest

from tests.lab.guests import boot_files, embedded


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
def embedded_qemu(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[libvirt.virConnect]:
    """Return libvirt's QEMU driver; a process can embed it once."""
    root = tmp_path_factory.mktemp("qemu")
    try:
        with embedded.open_driver(root) as connected:
            yield connected
    except libvirt.libvirtError as error:
        pytest.skip(f"no QEMU driver of libvirt here: {error}")


@pytest.fixture(scope="session")
def qemu(embedded_qemu: libvirt.virConnect) -> libvirt.virConnect:
    """Return the libvirt of this computer."""
    return embedded_qemu
