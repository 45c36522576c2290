# SPDX-License-Identifier: Apache-2.0
"""MIG: GPU instances, the vGPUs in them, and mixed sizes through mdev."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    A40_MIXED,
    A100,
    A100_MDEV,
    BLACKWELL,
    new_uuid,
    number,
    refused,
    store,
    vf_of,
)
from tests.lab.fakehost import Controller

pytestmark = pytest.mark.fakehost

#: profile ids of nvidia-smi mig -lgip, and types, by name
ONE_G, ONE_G_ME, ONE_G_10, TWO_G, THREE_G, FOUR_G, SEVEN_G = (
    (19, "474"), (20, "706"), (15, "707"), (14, "475"), (9, "476"),
    (5, "477"), (0, "478"),
)  # fmt: skip
IN_USE, INSUFFICIENT, INVALID, UNSUPPORTED = "19 ", "23 ", "2 ", "3 "


def index(host: Controller, address: str) -> int:
    return sorted(host.gpus()).index(address)


def instance(
    host: Controller, kind: tuple[int, str], start: int, gpu: str = A100
) -> str:
    return host.nvml("create", index(host, gpu), kind[0], start)


def names(host: Controller, address: str) -> set[str]:
    path = host.sys / "bus/pci/devices" / address / "nvidia"
    lines = (path / "creatable_vgpu_types").read_text().splitlines()[1:]
    return {line.partition(" : ")[2] for line in lines}


def kind_file(host: Controller, vf: int, gpu: str = A100) -> Path:
    place = host.sys / "bus/pci/devices" / vf_of(gpu, vf)
    return place / "nvidia/current_vgpu_type"


def test_without_an_instance_nothing_can_be_made(gpus: Controller) -> None:
    assert names(gpus, vf_of(A100, 0)) == set()
    with refused(errno.EIO):
        store(kind_file(gpus, 0), ONE_G[1])
    with refused(errno.EIO):
        store(kind_file(gpus, 0), "468")  # A100-4C is time-sliced


def test_a_type_needs_an_instance_of_its_kind(gpus: Controller) -> None:
    assert instance(gpus, TWO_G, 2) == "0 1"
    assert names(gpus, vf_of(A100, 0)) == {"GRID A100-2-10C"}
    store(kind_file(gpus, 0), TWO_G[1])
    place = kind_file(gpus, 0).parent / "gpu_instance_id"
    assert place.read_text() == "1\n"
    assert names(gpus, vf_of(A100, 1)) == set()
    with refused(errno.EIO):
        store(kind_file(gpus, 1), TWO_G[1])
    assert gpus.nvml("destroy", index(gpus, A100), 1) == IN_USE
    store(kind_file(gpus, 0), "0")
    assert gpus.nvml("destroy", index(gpus, A100), 1) == "0 "


def test_instances_are_placed_as_the_guide_says(gpus: Controller) -> None:
    assert instance(gpus, THREE_G, 2) == INVALID
    assert instance(gpus, THREE_G, 4) == "0 1"
    assert instance(gpus, FOUR_G, 0) == "0 2"
    assert instance(gpus, ONE_G, 0) == INSUFFICIENT
    for number_ in (1, 2):
        gpus.nvml("destroy", index(gpus, A100), number_)
    assert instance(gpus, ONE_G_ME, 0) == "0 1"
    assert instance(gpus, ONE_G_ME, 1) == INSUFFICIENT  # one a card
    assert [instance(gpus, ONE_G, n)[0] for n in range(1, 7)] == ["0"] * 6
    assert instance(gpus, ONE_G, -1) == INSUFFICIENT


def test_seven_of_the_smallest_fill_a_card(gpus: Controller) -> None:
    for vf in range(7):
        assert instance(gpus, ONE_G, -1) == f"0 {vf + 1}"
        store(kind_file(gpus, vf), ONE_G[1])
    with refused(errno.EIO):
        store(kind_file(gpus, 7), ONE_G[1])
    assert gpus.gpus()[A100]["could_make"] == []


def test_a_vgpu_moves_into_another_instance(gpus: Controller) -> None:
    for start in (0, 3):
        instance(gpus, ONE_G, start)
    store(kind_file(gpus, 0), ONE_G[1])
    other = kind_file(gpus, 0).parent / "gpu_instance_id"
    store(other, "2")
    assert other.read_text() == "2\n"
    store(kind_file(gpus, 1), ONE_G[1])
    for wrong in ("2", "7"):
        with refused(errno.EINVAL):
            store(kind_file(gpus, 1).parent / "gpu_instance_id", wrong)


def test_mig_types_are_mdevs_too(gpus: Controller) -> None:
    types = (
        gpus.sys
        / "bus/pci/devices"
        / vf_of(A100_MDEV, 0)
        / "mdev_supported_types"
    )
    counts = {
        kind.name.removeprefix("nvidia-"): number(kind / "available_instances")
        for kind in types.iterdir()
    }
    assert {kind for kind, available in counts.items() if available} == {
        ONE_G[1],
        THREE_G[1],
    }
    store(types / "nvidia-474/create", new_uuid())
    with refused(errno.EIO):
        store(
            gpus.sys
            / "bus/pci/devices"
            / vf_of(A100_MDEV, 1)
            / "mdev_supported_types/nvidia-474/create",
            new_uuid(),
        )


def test_a_rebind_destroys_instances_and_keeps_mig(gpus: Controller) -> None:
    gpus.sriov_manage(A100_MDEV, enable=True)
    card = gpus.gpus()[A100_MDEV]
    assert card["mig"]
    assert card["instances"] == {}
    gpus.reboot()
    assert gpus.gpus()[A100_MDEV]["instances"] == {
        "1": ["1g.5gb", 0],
        "2": ["3g.20gb", 4],
    }


def test_mig_is_switched_off_only_without_vfs(gpus: Controller) -> None:
    card = index(gpus, A100)
    assert gpus.nvml("set_mig", card, 0) == IN_USE
    gpus.sriov_manage(A100, enable=False)
    assert gpus.nvml("set_mig", card, 0) == "0 "
    assert gpus.nvml("create", card, 19, 0) == UNSUPPORTED
    gpus.sriov_manage(A100, enable=True)
    assert "GRID A100-4C" in names(gpus, vf_of(A100, 0))
    assert "GRID A100-1-5C" not in names(gpus, vf_of(A100, 0))


def test_blackwell_shares_an_instance_among_one_size(
    gpus: Controller,
) -> None:
    eight, twelve, whole = "1547", "1548", "1549"
    prefix = "NVIDIA RTX Pro 6000 Blackwell DC-"
    offered = names(gpus, vf_of(BLACKWELL, 0))
    assert f"{prefix}1-8Q" in offered
    assert f"{prefix}4-96Q" not in offered
    store(kind_file(gpus, 0, BLACKWELL), eight)
    for other in (twelve, whole):
        with refused(errno.EIO):
            store(kind_file(gpus, 1, BLACKWELL), other)
    store(kind_file(gpus, 1, BLACKWELL), eight)
    store(kind_file(gpus, 2, BLACKWELL), eight)
    with refused(errno.EIO):
        store(kind_file(gpus, 3, BLACKWELL), eight)  # three in 24 GB
    # the same size, another series, in an instance of two slices
    store(kind_file(gpus, 3, BLACKWELL), "1553")  # 2-24C
    store(kind_file(gpus, 4, BLACKWELL), "1551")  # 2-24Q


def test_mixed_sizes_through_mdev(gpus: Controller) -> None:
    def types(vf: int) -> Path:
        place = gpus.sys / "bus/pci/devices" / vf_of(A40_MIXED, vf)
        return place / "mdev_supported_types"

    def available(vf: int, kind: str) -> int:
        return number(types(vf) / f"nvidia-{kind}/available_instances")

    small, medium, large, whole = "557", "558", "565", "566"
    store(types(0) / f"nvidia-{small}/create", new_uuid())
    assert [available(1, k) for k in (small, medium, large, whole)] == [
        1,
        1,
        1,
        0,
    ]
    store(types(1) / f"nvidia-{large}/create", new_uuid())
    assert [available(2, k) for k in (small, medium, large)] == [1, 1, 0]
    assert [v["start"] for v in gpus.gpus()[A40_MIXED]["vgpus"].values()] == [
        0,
        24,
    ]
    with refused(errno.EIO):
        store(types(2) / f"nvidia-{large}/create", new_uuid())
