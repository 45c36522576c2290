# SPDX-License-Identifier: Apache-2.0
"""Guests of this computer's libvirt and QEMU, and of Debian 13's."""

import os
import pathlib
from collections.abc import Iterator

import libvirt
import pytest

from tests.lab.guests import boot_files, private_libvirtd
from tests.unit.house import sources


@pytest.fixture(scope="session")
def trixie() -> pathlib.Path:
    """Return the root directory of a Debian 13 with libvirt and QEMU."""
    if obstacle := boot_files.find_obstacle():
        pytest.skip(obstacle)
    lab = pathlib.Path(os.environ.get("NOVA_ACCEL_LAB", sources.ROOT / ".lab"))
    return private_libvirtd.unpack(lab.resolve() / "guests")


@pytest.fixture(scope="session", params=["stock", "trixie"])
def qemu(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[libvirt.virConnect]:
    """Return the libvirt of this computer, then that of Debian 13."""
    if request.param == "stock":
        yield request.getfixturevalue("embedded_qemu")
        return
    root = request.getfixturevalue("trixie")
    place = tmp_path_factory.mktemp("libvirtd")
    with private_libvirtd.serve(root, place, "trixie") as connected:
        yield connected


@pytest.fixture(scope="session")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the directory with the OVMF of this computer's Debian."""
    return boot_files.fetch_ovmf(tmp_path_factory.mktemp("ovmf"))
