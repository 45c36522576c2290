# SPDX-License-Identifier: Apache-2.0
"""The simulated NVIDIA driver counts vGPUs: sizes, limits, one per VF."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    A40,
    A40_VFS,
    T4,
    new_uuid,
    number,
    refused,
    store,
)
from tests.lab.fakehost import Controller

pytestmark = pytest.mark.fakehost


def types_of(host: Controller, address: str) -> Path:
    return host.sys / "bus/pci/devices" / address / "mdev_supported_types"


def available(host: Controller, address: str, kind: str) -> int:
    return number(types_of(host, address) / kind / "available_instances")


def create(host: Controller, address: str, kind: str) -> str:
    uuid = new_uuid()
    store(types_of(host, address) / kind / "create", uuid)
    return uuid


def test_t4_offers_its_types_on_the_pf(host: Controller) -> None:
    names = {
        kind.name: (kind / "name").read_text().strip()
        for kind in types_of(host, T4).iterdir()
    }
    assert len(names) == 17
    assert names["nvidia-222"] == "GRID T4-1B"
    assert names["nvidia-234"] == "GRID T4-16Q"
    description = types_of(host, T4) / "nvidia-222/description"
    assert description.read_text() == (
        "num_heads=4, frl_config=45, framebuffer=1024M, "
        "max_resolution=5120x2880, max_instance=16\n"
    )


def test_sizes_are_equal_on_one_card(host: Controller) -> None:
    assert available(host, T4, "nvidia-232") == 4
    uuid = create(host, T4, "nvidia-232")  # 4Q
    assert available(host, T4, "nvidia-232") == 3
    assert available(host, T4, "nvidia-227") == 3  # 4A: the same size
    assert available(host, T4, "nvidia-230") == 0  # 1Q
    with refused(errno.EIO):
        create(host, T4, "nvidia-230")
    store(host.sys / "bus/mdev/devices" / uuid / "remove", "1")
    assert available(host, T4, "nvidia-230") == 16


def test_cards_count_separately(host: Controller) -> None:
    create(host, T4, "nvidia-234")
    assert available(host, T4, "nvidia-230") == 0
    assert available(host, "0000:3c:00.0", "nvidia-230") == 16


def test_a40_offers_types_on_vfs_only(host: Controller) -> None:
    listed = os.listdir(host.sys / "class/mdev_bus")
    assert A40 not in listed
    assert set(A40_VFS) <= set(listed)
    assert len(os.listdir(types_of(host, A40_VFS[0]))) == 22


def test_a_vf_carries_one_and_the_card_one_size(host: Controller) -> None:
    first, second, third, _ = A40_VFS
    assert available(host, first, "nvidia-558") == 1
    create(host, first, "nvidia-558")
    assert available(host, first, "nvidia-558") == 0
    assert available(host, second, "nvidia-558") == 1
    assert available(host, second, "nvidia-560") == 0
    with refused(errno.EIO):
        create(host, first, "nvidia-558")
    with refused(errno.EIO):
        create(host, second, "nvidia-560")
    create(host, third, "nvidia-568")  # 2A beside 2Q


def test_more_vfs_than_memory(host: Controller) -> None:
    vfs = A40_VFS
    create(host, vfs[0], "nvidia-565")  # 24Q: two per card
    create(host, vfs[1], "nvidia-565")
    assert [available(host, v, "nvidia-565") for v in vfs] == [0, 0, 0, 0]
    with refused(errno.EIO):
        create(host, vfs[2], "nvidia-565")


def test_unbinding_the_card_removes_types_and_devices(
    host: Controller,
) -> None:
    uuid = create(host, T4, "nvidia-230")
    before = host.uevents()[-1]["seqnum"]
    store(host.sys / "bus/pci/drivers/nvidia/unbind", T4)
    assert not types_of(host, T4).exists()
    assert not (host.sys / "bus/mdev/devices" / uuid).exists()
    assert T4 not in os.listdir(host.sys / "class/mdev_bus")
    states = [
        event["properties"].get("MDEV_STATE") for event in host.uevents(before)
    ]
    assert "unregistered" in states


def test_a_vf_given_to_vfio_offers_nothing(host: Controller) -> None:
    vf = A40_VFS[0]
    store(host.sys / "bus/pci/drivers/nvidia/unbind", vf)
    assert not types_of(host, vf).exists()
    assert types_of(host, A40_VFS[1]).exists()
