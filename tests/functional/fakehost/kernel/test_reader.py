# SPDX-License-Identifier: Apache-2.0
"""The reader of /sys returns the state of the simulated kernel."""

from __future__ import annotations

import os

import pytest

from nova_accel.host.sysfs import host_reader
from tests.functional.fakehost.support.cards import (
    A40,
    A40_VFS,
    FPGA,
    T4,
    new_uuid,
    store,
)
from tests.lab.fakehost import Controller

pytestmark = pytest.mark.fakehost

TYPES = "/sys/class/mdev_bus/mtty/mdev_supported_types"


def offers(host: Controller) -> dict[str, dict[str, int | None]]:
    reader = host_reader.HostReader(host.root)
    return {
        parent.name: {kind.type_id: kind.available for kind in parent.types}
        for parent in reader.mdev_parents()
    }


def test_functions_and_parents_are_those_of_the_kernel(
    host: Controller,
) -> None:
    reader = host_reader.HostReader(host.root)
    assert {str(f.address) for f in reader.functions()} == set(
        host.functions()
    )
    assert [p.name for p in reader.mdev_parents()] == sorted(
        os.listdir(host.sys / "class/mdev_bus")
    )
    assert {p.name for p in reader.mdev_parents() if p.physfn == A40} == set(
        A40_VFS
    )
    fpga = reader.function(FPGA)
    assert fpga is not None
    assert fpga.numa_node is None
    assert fpga.driver is None
    assert reader.problems() == ()


def test_offers_follow_creates_and_removes(host: Controller) -> None:
    before = offers(host)
    uuid = new_uuid()
    parent = host.sys / "class/mdev_bus" / T4
    store(parent / "mdev_supported_types/nvidia-232/create", uuid)
    during = offers(host)[T4]
    assert during["nvidia-232"] == 3
    assert during["nvidia-230"] == 0
    (mdev,) = host_reader.HostReader(host.root).mdevs()
    assert (mdev.uuid, mdev.parent, mdev.type_id) == (
        uuid,
        T4,
        "nvidia-232",
    )
    store(parent / uuid / "remove", "1")
    assert offers(host) == before


@pytest.mark.parametrize("on", ["read", "open"])
def test_an_unreadable_type_is_a_problem_and_others_go_on(
    host: Controller, on: str
) -> None:
    before = offers(host)
    host.fail(f"{TYPES}/mtty-1/available_instances", "EIO", on=on)
    reader = host_reader.HostReader(host.root)
    seen = {p.name: p for p in reader.mdev_parents()}
    assert seen.keys() == before.keys()
    assert any("mtty-1" in p.where for p in reader.problems())
    assert {k.type_id: k.available for k in seen["mtty"].types}["mtty-2"] == 12


def test_a_type_that_vanishes_while_being_read(host: Controller) -> None:
    before = offers(host)
    host.vanish(f"{TYPES}/mtty-1", when=f"{TYPES}/mtty-1/name")
    during = offers(host)
    assert during["mtty"]["mtty-2"] == 12
    assert during[T4] == before[T4]
    assert list(offers(host)["mtty"]) == ["mtty-2"]
