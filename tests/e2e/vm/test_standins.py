# SPDX-License-Identifier: Apache-2.0
"""The lab VM's fake drivers behave as the vendors' host drivers do."""

import errno
import pathlib
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.support.vm_site import (
    DEVICES,
    Domain,
    inside,
    pci_hostdev,
    remote,
    virsh,
    wait_for,
    write,
)
from tests.e2e.vm import MARKS
from tests.lab.vm import topology

pytestmark = MARKS

FUNCTIONS = "/sys/bus/pci/devices"
PF = f"{FUNCTIONS}/{topology.A40_ADDRESS}"
T4_TYPES = f"{FUNCTIONS}/{topology.T4_ADDRESS}/mdev_supported_types"
#: The first two VFs: their routing offset is 4, as a real A40's.
VFS = ("0000:01:00.4", "0000:01:00.5")
#: Numbers of fakenvidia.c: GRID T4-4Q, GRID T4-4C, GRID T4-8Q
T4_4Q, T4_4C, T4_8Q = 232, 319, 233
#: NVIDIA A40-8Q and A40-24Q
A40_8Q, A40_24Q = "562", "565"


def nvidia(lab_vm: pathlib.Path, *words: str) -> None:
    """Load the fake NVIDIA driver in a form, or unload it."""
    inside(lab_vm, f'. "$LAB_GUEST/lib.sh"; lab_nvidia {" ".join(words)}')


@pytest.fixture(scope="module")
def mdev_form(lab_vm: pathlib.Path) -> Iterator[pathlib.Path]:
    nvidia(lab_vm, "mdev", topology.A40_ADDRESS)
    yield lab_vm
    nvidia(lab_vm, "off")


@pytest.fixture(scope="module")
def vfio_form(lab_vm: pathlib.Path) -> Iterator[pathlib.Path]:
    nvidia(lab_vm, "vfio", topology.A40_ADDRESS)
    yield lab_vm
    nvidia(lab_vm, "off")


@pytest.fixture
def flex(lab_vm: pathlib.Path) -> Iterator[str]:
    inside(lab_vm, '. "$LAB_GUEST/lib.sh"; lab_insmod xe')
    yield f"{FUNCTIONS}/{topology.FLEX_ADDRESS}"
    inside(lab_vm, "rmmod xe")


def available_instances(lab: pathlib.Path, parent: str) -> dict[str, int]:
    """Return the available instances of a parent's types."""
    script = "cd $0 && grep . */available_instances"
    lines = remote(lab, "sh", "-c", script, parent).splitlines()
    pairs = (line.split("/available_instances:") for line in lines)
    return {name: int(number) for name, number in pairs}


def test_two_types_of_one_size_share_a_card(mdev_form: pathlib.Path) -> None:
    before = available_instances(mdev_form, T4_TYPES)
    assert before[f"nvidia-{T4_4Q}"] == 4
    made = {kind: str(uuid.uuid4()) for kind in (T4_4Q, T4_4C)}
    for kind, name in made.items():
        path = f"{T4_TYPES}/nvidia-{kind}/create"
        assert write(mdev_form, path, name) == ""
    now = available_instances(mdev_form, T4_TYPES)
    assert {kind for kind, number in now.items() if number} == {
        f"nvidia-{T4_4Q}",
        f"nvidia-{T4_4C}",
    }
    path = f"{T4_TYPES}/nvidia-{T4_8Q}/create"
    refused = write(mdev_form, path, str(uuid.uuid4()))
    assert refused == errno.errorcode[errno.EIO]
    for name in made.values():
        assert write(mdev_form, f"{DEVICES}/{name}/remove", "1") == ""
    assert available_instances(mdev_form, T4_TYPES) == before


def test_a_vf_carries_one_vgpu(mdev_form: pathlib.Path) -> None:
    parents = [f"{FUNCTIONS}/{vf}/mdev_supported_types" for vf in VFS]
    before = available_instances(mdev_form, parents[0])
    assert set(before.values()) == {1}
    name = str(uuid.uuid4())
    path = f"{parents[0]}/nvidia-{A40_8Q}/create"
    assert write(mdev_form, path, name) == ""
    assert set(available_instances(mdev_form, parents[0]).values()) == {0}
    beside = available_instances(mdev_form, parents[1])
    assert {k for k, v in beside.items() if v} == {f"nvidia-{A40_8Q}"}
    assert write(mdev_form, f"{DEVICES}/{name}/remove", "1") == ""
    assert available_instances(mdev_form, parents[0]) == before


def test_only_the_tool_changes_the_number_of_vfs(
    mdev_form: pathlib.Path,
) -> None:
    assert remote(mdev_form, "cat", f"{PF}/sriov_numvfs") == "16\n"
    refused = write(mdev_form, f"{PF}/sriov_numvfs", "0")
    assert refused == errno.errorcode[errno.ENOENT]
    tool = "/usr/lib/nvidia/sriov-manage"
    # There in the namespace of nova-compute too, and nothing to do.
    remote(mdev_form, tool, "-e", topology.A40_ADDRESS)
    assert remote(mdev_form, "cat", f"{PF}/sriov_numvfs") == "16\n"
    assert "No such file" in remote(
        mdev_form, "sh", "-c", f"ls {PF}/mdev_supported_types 2>&1 || true"
    )


def test_a_vf_is_typed_and_cleared(vfio_form: pathlib.Path) -> None:
    first, second = (f"{FUNCTIONS}/{vf}/nvidia" for vf in VFS)
    kind = f"{first}/current_vgpu_type"
    assert write(vfio_form, kind, "0") == "EPERM"
    assert write(vfio_form, kind, "1") == "EINVAL"
    assert write(vfio_form, kind, A40_8Q) == ""
    assert write(vfio_form, kind, A40_8Q) == "EPERM"
    assert write(vfio_form, f"{second}/current_vgpu_type", A40_24Q) == "EIO"
    head, *lines = remote(
        vfio_form, "cat", f"{second}/creatable_vgpu_types"
    ).splitlines()
    assert head == "ID    : vGPU Name"
    assert lines == [f"{A40_8Q}   : NVIDIA A40-8Q"]
    assert remote(vfio_form, "cat", f"{first}/placement_id") == "0\n"
    assert write(vfio_form, kind, "0") == ""
    assert remote(vfio_form, "cat", kind) == "0\n"


def test_a_vf_is_a_vfio_device_once_typed(vfio_form: pathlib.Path) -> None:
    kind = f"{FUNCTIONS}/{VFS[0]}/nvidia/current_vgpu_type"
    hostdev = pci_hostdev(VFS[0]).replace("managed='yes'", "managed='no'")
    with (
        pytest.raises(AssertionError, match="No such device"),
        Domain(vfio_form, hostdev),
    ):
        pass
    assert write(vfio_form, kind, A40_8Q) == ""
    with Domain(vfio_form, hostdev) as domain:
        wait_for(lambda: "U" in domain.console_output(), "the guest")
        assert "managed='no'" in domain.current_xml()
        assert write(vfio_form, kind, "0") == "EBUSY"
    assert remote(vfio_form, "cat", kind).strip() == A40_8Q
    assert write(vfio_form, kind, "0") == ""


def test_vfs_of_a_card_whose_driver_enables_them(
    lab_vm: pathlib.Path, flex: str
) -> None:
    assert write(lab_vm, f"{flex}/sriov_numvfs", "5") == "ERANGE"
    assert write(lab_vm, f"{flex}/sriov_numvfs", "2") == ""
    assert write(lab_vm, f"{flex}/sriov_numvfs", "3") == "EBUSY"
    vf = remote(lab_vm, "readlink", f"{flex}/virtfn1").strip()
    address = pathlib.Path(vf).name
    with Domain(lab_vm, pci_hostdev(address)) as domain:
        assert "managed='yes'" in domain.current_xml()
        wait_for(lambda: "U" in domain.console_output(), "the guest")
    assert write(lab_vm, f"{flex}/sriov_numvfs", "0") == ""
    listed = virsh("nodedev-list", "--cap", "pci")
    assert address.translate(str.maketrans(":.", "__")) not in listed
