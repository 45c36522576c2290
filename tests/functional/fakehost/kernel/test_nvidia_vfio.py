# SPDX-License-Identifier: Apache-2.0
"""Vendor-specific VFIO: the files of a VF and what writing them does."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.functional.fakehost.support.cards import (
    L40S,
    L40S_MIXED,
    T4,
    refused,
    store,
    vf_of,
)
from tests.lab.fakehost import Controller, FakehostError

pytestmark = pytest.mark.fakehost

ONE_Q, TWO_Q, FOUR_Q, SIXTEEN_Q = "1147", "1148", "1150", "1154"
TWENTY_FOUR_Q, TWENTY_FOUR_A, ALL_Q = "1155", "1165", "1156"


def nvidia(host: Controller, number: int, card: str = L40S) -> Path:
    return host.sys / "bus/pci/devices" / vf_of(card, number) / "nvidia"


def creatable(
    host: Controller, number: int, card: str = L40S
) -> dict[str, str]:
    text = (nvidia(host, number, card) / "creatable_vgpu_types").read_text()
    header, *lines = text.splitlines()
    assert header == "ID    : vGPU Name"
    return {
        number.strip(): name
        for number, _, name in (line.partition(" : ") for line in lines)
    }


def current(host: Controller, number: int, card: str = L40S) -> str:
    return (nvidia(host, number, card) / "current_vgpu_type").read_text()


def make(host: Controller, number: int, kind: str, card: str = L40S) -> None:
    store(nvidia(host, number, card) / "current_vgpu_type", kind)


def test_a_vf_has_the_files_and_the_pf_has_none(gpus: Controller) -> None:
    assert sorted(os.listdir(nvidia(gpus, 0))) == [
        "creatable_vgpu_types",
        "current_vgpu_type",
        "gpu_instance_id",
        "placement_id",
        "vgpu_params",
    ]
    assert not (gpus.sys / "bus/pci/devices" / L40S / "nvidia").exists()
    assert L40S not in os.listdir(gpus.sys / "class/mdev_bus")
    vf = nvidia(gpus, 0).parent
    assert (vf / "driver").resolve().name == "nvidia"
    assert (vf / "driver_override").read_text() == "(null)\n"
    assert os.listdir(vf / "vfio-dev")


def test_creatable_types_are_listed_as_recorded(gpus: Controller) -> None:
    text = (nvidia(gpus, 0) / "creatable_vgpu_types").read_text()
    lines = text.splitlines()
    assert lines[:2] == ["ID    : vGPU Name", "1145  : NVIDIA L40S-1B"]
    assert len(lines) == 1 + 23


def test_a_type_is_set_and_cleared(gpus: Controller) -> None:
    assert current(gpus, 0) == "0\n"
    make(gpus, 0, TWENTY_FOUR_Q)
    assert current(gpus, 0) == "1155\n"
    assert creatable(gpus, 0) == {}
    assert creatable(gpus, 1) == {
        TWENTY_FOUR_Q: "NVIDIA L40S-24Q",
        TWENTY_FOUR_A: "NVIDIA L40S-24A",
    }
    make(gpus, 1, TWENTY_FOUR_A)
    assert creatable(gpus, 2) == {}
    make(gpus, 0, "0")
    make(gpus, 1, "0")
    assert len(creatable(gpus, 2)) == 23


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", errno.EPERM),  # there is none
        ("9999", errno.EIO),
        ("x", errno.EINVAL),
        ("-1", errno.EINVAL),
        ("99999999999999", errno.ERANGE),
    ],
)
def test_what_a_free_vf_refuses(
    gpus: Controller, text: str, code: int
) -> None:
    with refused(code):
        make(gpus, 0, text)


def test_what_a_typed_vf_refuses(gpus: Controller) -> None:
    make(gpus, 0, TWENTY_FOUR_Q)
    with refused(errno.EPERM):
        make(gpus, 0, TWENTY_FOUR_Q)
    with refused(errno.EIO):
        make(gpus, 1, FOUR_Q)  # another size
    make(gpus, 1, TWENTY_FOUR_Q)
    with refused(errno.EIO):
        make(gpus, 2, TWENTY_FOUR_Q)  # full


def test_a_guest_keeps_its_type(gpus: Controller) -> None:
    make(gpus, 0, FOUR_Q)
    group = (nvidia(gpus, 0).parent / "iommu_group").resolve().name
    guest = os.open(gpus.root / "dev/vfio" / group, os.O_RDONLY)
    fcntl.flock(guest, fcntl.LOCK_EX)
    for name, text in (
        ("current_vgpu_type", "0"),
        ("current_vgpu_type", FOUR_Q),
        ("placement_id", "4"),
        ("vgpu_params", "a=b"),
    ):
        with refused(errno.EBUSY):
            store(nvidia(gpus, 0) / name, text)
    with pytest.raises(FakehostError, match="unbindLock"):
        gpus.sriov_manage(L40S, enable=False)
    os.close(guest)
    make(gpus, 0, "0")


def test_params_live_as_long_as_the_type(gpus: Controller) -> None:
    params = nvidia(gpus, 0) / "vgpu_params"
    assert params.read_text() == "\n"
    make(gpus, 0, FOUR_Q)
    store(params, "frame_rate_limiter=0")
    assert params.read_text() == "frame_rate_limiter=0\n"
    make(gpus, 0, "0")
    assert params.read_text() == "\n"


@pytest.mark.parametrize("name", ["placement_id", "gpu_instance_id"])
def test_places_are_enxio_without_a_vgpu(gpus: Controller, name: str) -> None:
    with refused(errno.ENXIO):
        (nvidia(gpus, 0) / name).read_text()
    with refused(errno.ENXIO):
        store(nvidia(gpus, 0) / name, "0")


def test_mixed_sizes_share_a_card(gpus: Controller) -> None:
    make(gpus, 0, ONE_Q, L40S_MIXED)
    # the driver took place 0; 48Q and the first 24 are gone
    types = creatable(gpus, 1, L40S_MIXED)
    assert ALL_Q not in types
    assert TWENTY_FOUR_Q in types
    make(gpus, 1, TWENTY_FOUR_Q, L40S_MIXED)
    assert (nvidia(gpus, 1, L40S_MIXED) / "placement_id").read_text() == "24\n"
    assert TWENTY_FOUR_Q not in creatable(gpus, 2, L40S_MIXED)
    assert SIXTEEN_Q not in creatable(gpus, 2, L40S_MIXED)
    make(gpus, 2, TWO_Q, L40S_MIXED)
    # 0 is taken, so the first free place of 2 GiB is 4
    assert (nvidia(gpus, 2, L40S_MIXED) / "placement_id").read_text() == "4\n"


def test_a_vgpu_moves_to_an_allowed_free_place(gpus: Controller) -> None:
    place = nvidia(gpus, 0, L40S_MIXED) / "placement_id"
    make(gpus, 0, TWO_Q, L40S_MIXED)
    store(place, "46")
    assert place.read_text() == "46\n"
    with refused(errno.EINVAL):
        store(place, "2")  # no place of a 2 GiB type
    make(gpus, 1, TWENTY_FOUR_Q, L40S_MIXED)
    with refused(errno.EINVAL):
        store(place, "22")  # taken by the other
    assert place.read_text() == "46\n"


def test_denied_places_of_the_smallest_types(gpus: Controller) -> None:
    place = nvidia(gpus, 0, L40S_MIXED) / "placement_id"
    make(gpus, 0, ONE_Q, L40S_MIXED)
    for start in (2, 3, 8, 9, 44, 45):
        with refused(errno.EINVAL):
            store(place, str(start))
    store(place, "47")


def test_types_are_lost_with_the_vfs_and_by_a_reboot(
    gpus: Controller,
) -> None:
    make(gpus, 0, FOUR_Q)
    gpus.sriov_manage(L40S, enable=False)
    assert not nvidia(gpus, 0).parent.exists()
    gpus.sriov_manage(L40S, enable=True)
    assert (
        gpus.sys / "bus/pci/devices" / L40S / "sriov_numvfs"
    ).read_text() == "32\n"
    assert current(gpus, 0) == "0\n"
    make(gpus, 0, FOUR_Q)
    gpus.sriov_manage(L40S, enable=True)  # nothing to do
    assert current(gpus, 0) == f"{FOUR_Q}\n"
    gpus.reboot()
    assert current(gpus, 0) == "0\n"


def test_mixed_mode_is_lost_with_the_vfs(gpus: Controller) -> None:
    assert gpus.gpus()[L40S_MIXED]["mixed"]
    gpus.sriov_manage(L40S_MIXED, enable=True)
    assert not gpus.gpus()[L40S_MIXED]["mixed"]


def test_the_kernel_refuses_a_vf_count(gpus: Controller) -> None:
    for number in ("0", "2"):
        with refused(errno.ENOENT):
            store(gpus.sys / "bus/pci/devices" / L40S / "sriov_numvfs", number)


def test_the_tool_is_a_program(gpus: Controller, tmp_path: Path) -> None:
    tool = gpus.write_sriov_manage(tmp_path / "bin/sriov-manage")
    done = subprocess.run(  # noqa: S603
        [tool, "-e", L40S], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout == f"Enabling VFs on {L40S}\n"
    assert len([f for f in gpus.functions() if f.startswith("0000:8")]) == 33
    for words in (["-e"], ["-x", L40S], ["-d", T4]):
        failed = subprocess.run(  # noqa: S603
            [tool, *words], capture_output=True, check=False
        )
        assert failed.returncode == 1


def test_a_vf_given_to_vfio_has_no_files(gpus: Controller) -> None:
    make(gpus, 0, FOUR_Q)
    vf = nvidia(gpus, 0).parent
    store(vf / "driver/unbind", vf.name)
    assert not (vf / "nvidia").exists()
    assert gpus.gpus()[L40S]["vgpus"] == {}
