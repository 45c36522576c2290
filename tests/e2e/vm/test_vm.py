# SPDX-License-Identifier: Apache-2.0
"""The lab VM keeps its promises: real mdevs, real functions, real libvirt.

A running lab is used as it is; else one is started, and ended after.
"""

import errno
import pathlib
import sys
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.support.vm_site import (
    DEVICES,
    Domain,
    inside,
    mdev_hostdev,
    pci_hostdev,
    remote,
    run,
    virsh,
    wait_for,
    write,
)
from tests.e2e.vm import MARKS
from tests.lab import vm
from tests.lab.vm import topology

pytestmark = MARKS

TYPES = "/sys/class/mdev_bus/mtty/mdev_supported_types"
#: "mtty-2": two serial ports per mdev (the kernel's samples/vfio-mdev/mtty.c)
TYPE = f"{TYPES}/mtty-2"


@pytest.fixture
def mdev(lab_vm: pathlib.Path) -> Iterator[str]:
    name = str(uuid.uuid4())
    assert write(lab_vm, f"{TYPE}/create", name) == ""
    yield name
    if name in remote(lab_vm, "ls", DEVICES):
        assert write(lab_vm, f"{DEVICES}/{name}/remove", "1") == ""


def node_device(mdev: str) -> str:
    """Return libvirt's name of an mdev of mtty."""
    return f"mdev_{mdev.replace('-', '_')}_mtty"


def test_types_of_the_sample_driver_are_seen(lab_vm: pathlib.Path) -> None:
    assert remote(lab_vm, "ls", TYPES).split() == ["mtty-1", "mtty-2"]
    api = remote(lab_vm, "cat", f"{TYPE}/device_api")
    assert api.strip() == "vfio-pci"
    assert "mtty_mtty" in virsh("nodedev-list", "--cap", "mdev_types")


def test_made_through_sysfs_seen_by_all(
    lab_vm: pathlib.Path, mdev: str
) -> None:
    assert mdev in inside(lab_vm, f"ls {DEVICES}").split()
    wait_for(
        lambda: (
            node_device(mdev) in virsh("nodedev-list", "--cap", "mdev").split()
        ),
        "libvirt's node device",
    )
    assert write(lab_vm, f"{DEVICES}/{mdev}/remove", "1") == ""
    assert mdev not in inside(lab_vm, f"ls {DEVICES}").split()
    wait_for(
        lambda: (
            node_device(mdev)
            not in virsh("nodedev-list", "--cap", "mdev").split()
        ),
        "the end of libvirt's node device",
    )


def test_domain_holds_the_mdev_and_lets_go(
    lab_vm: pathlib.Path, mdev: str
) -> None:
    with Domain(lab_vm, mdev_hostdev(mdev)) as domain:
        assert f"uuid='{mdev}'" in domain.current_xml()
        wait_for(
            lambda: "U" in domain.console_output(), "the guest from its qcow2"
        )
        device = vm.shared_dir(lab_vm) / f"{domain.name}.hostdev"
        device.write_text(mdev_hostdev(mdev))
        virsh("detach-device", domain.name, str(device), "--live")
        device.unlink()
        wait_for(
            lambda: "<hostdev" not in domain.current_xml(),
            "the guest to eject the mdev",
        )
        assert "E" in domain.console_output()


def test_no_instance_left_is_enospc(lab_vm: pathlib.Path) -> None:
    made: list[str] = []
    try:
        available = int(remote(lab_vm, "cat", f"{TYPE}/available_instances"))
        assert available > 0
        for _ in range(available):
            made.append(str(uuid.uuid4()))
            assert write(lab_vm, f"{TYPE}/create", made[-1]) == ""
        assert remote(lab_vm, "cat", f"{TYPE}/available_instances") == "0\n"
        refused = write(lab_vm, f"{TYPE}/create", str(uuid.uuid4()))
        assert refused == errno.errorcode[errno.ENOSPC]
    finally:
        for name in made:
            write(lab_vm, f"{DEVICES}/{name}/remove", "1")


def test_what_is_not_a_uuid_is_einval(lab_vm: pathlib.Path) -> None:
    refused = write(lab_vm, f"{TYPE}/create", "not-a-uuid")
    assert refused == errno.errorcode[errno.EINVAL]


def test_whole_function_goes_in_and_comes_back(lab_vm: pathlib.Path) -> None:
    node = f"/sys/bus/pci/devices/{topology.T4_ADDRESS}"

    def driver() -> str:
        script = f"readlink {node}/driver || true"
        return inside(lab_vm, script).strip().rpartition("/")[2]

    assert remote(lab_vm, "cat", f"{node}/vendor") == "0x10de\n"
    assert remote(lab_vm, "cat", f"{node}/device") == "0x1eb8\n"
    before = driver()
    assert before != "vfio-pci"
    with Domain(lab_vm, pci_hostdev(topology.T4_ADDRESS)) as domain:
        assert "managed='yes'" in domain.current_xml()
        assert driver() == "vfio-pci"
        wait_for(lambda: "U" in domain.console_output(), "the guest")
    assert driver() == before


def test_virtual_functions_have_groups_of_their_own(
    lab_vm: pathlib.Path,
) -> None:
    node = f"/sys/bus/pci/devices/{topology.A40_ADDRESS}"
    assert remote(lab_vm, "cat", f"{node}/sriov_totalvfs") == "16\n"
    functions = f'. "$LAB_GUEST/lib.sh"; lab_vfs {topology.A40_ADDRESS}'
    inside(lab_vm, f"{functions} 4")
    try:
        links = remote(
            lab_vm,
            "sh",
            "-c",
            f"for n in 0 1 2 3; do readlink {node}/virtfn$n; "
            f"readlink {node}/virtfn$n/iommu_group; done",
        ).split()
        addresses = [pathlib.Path(link).name for link in links[::2]]
        # first VF offset 4, stride 1
        assert addresses == [f"0000:01:00.{n}" for n in (4, 5, 6, 7)]
        assert len(set(links[1::2])) == 4
    finally:
        inside(lab_vm, f"{functions} 0")


@pytest.mark.parametrize("status", [0, 7])
def test_status_of_a_job_comes_back(
    lab_vm: pathlib.Path, tmp_path: pathlib.Path, status: int
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"echo from $(hostname); exit {status}\n")
    command = (sys.executable, "-m", "tests.lab.vm", "--lab", str(lab_vm))
    done = run(*command, "run", str(job))
    assert done.returncode == status, done.stderr
    assert done.stdout == "from labvm\n"
