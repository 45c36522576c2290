# SPDX-License-Identifier: Apache-2.0
"""The lab VM keeps its promises: real mdevs, real functions, real libvirt.

A running lab is used as it is; else one is started, and ended after.
"""

import errno
import os
import pathlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.lab import vm
from tests.lab.vm import layout, topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the lab VM shares files as root"
    ),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TYPES = "/sys/class/mdev_bus/mtty/mdev_supported_types"
#: "mtty-2": two serial ports per mdev (the kernel's samples/vfio-mdev/mtty.c)
TYPE = f"{TYPES}/mtty-2"
DEVICES = "/sys/bus/mdev/devices"

#: writes one string in one write(2) and prints the errno's name
WRITE = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
try:
    os.write(fd, sys.argv[2].encode())
except OSError as exc:
    print(errno.errorcode[exc.errno])
"""


@pytest.fixture(scope="session")
def lab() -> Iterator[pathlib.Path]:
    home = os.environ.get("NOVA_ACCEL_LAB", str(REPOSITORY / ".lab"))
    path = pathlib.Path(home).resolve()
    if vm.is_up(path):
        yield path
        return
    vm.prepare(path)
    vm.start(path, share=path / "vm-test-share")
    yield path
    vm.stop(path)
    place = layout.layout_of(path)
    assert not vm.is_up(path)
    assert f" {place.root}/" not in pathlib.Path("/proc/mounts").read_text()
    assert not list(place.serve.glob("*.sock"))
    listing = run("ps", "-eo", "args")
    assert f"path={place.serve}" not in listing.stdout


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - arguments are ours
        argv, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def remote(lab: pathlib.Path, *argv: str) -> str:
    """Run a command here with the machine's /sys, return its output."""
    done = run(*vm.exec_prefix(lab), *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def inside(lab: pathlib.Path, script: str) -> str:
    """Run a shell script inside the machine, return its output."""
    done = vm.guest_exec(lab, ["sh", "-c", script])
    assert done.returncode == 0, done.stderr
    return done.stdout


def virsh(*argv: str) -> str:
    done = run("virsh", "-q", "-c", vm.libvirt_uri(), *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(lab: pathlib.Path, path: str, text: str) -> str:
    """Write to the machine's sysfs; return the errno's name, or nothing."""
    return remote(lab, sys.executable, "-c", WRITE, path, text).strip()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    # a busy machine leaves the lab a tenth of a core
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.3)


def mdev_hostdev(mdev: str) -> str:
    return (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
        f"<source><address uuid='{mdev}'/></source></hostdev>"
    )


def pci_hostdev(address: str) -> str:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return (
        "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
        f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' "
        f"function='0x{function}'/></source></hostdev>"
    )


class Domain:
    """A domain that boots the tiny guest from a qcow2 disk made here."""

    def __init__(self, lab: pathlib.Path, hostdev: str) -> None:
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        share = vm.shared_dir(lab)
        self.disk = share / f"{self.name}.qcow2"
        self.serial = share / f"{self.name}.serial"
        self.definition = share / f"{self.name}.xml"
        guest = layout.layout_of(lab).standins / "acker.img"
        convert = ("qemu-img", "convert", "-O", "qcow2")
        done = run(*convert, str(guest), str(self.disk))
        assert done.returncode == 0, done.stderr
        self.definition.write_text(self.xml(vm.virt_type(lab), hostdev))

    def xml(self, kind: str, hostdev: str) -> str:
        root = "<controller type='pci' index='0' model='pcie-root'/>"
        ports = root + "<controller type='pci' model='pcie-root-port'/>" * 4
        return (
            f"<domain type='{kind}'><name>{self.name}</name>"
            "<memory unit='MiB'>64</memory><vcpu>1</vcpu>"
            "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
            "<features><acpi/></features><devices>"
            "<disk type='file' device='disk'>"
            "<driver name='qemu' type='qcow2' cache='none'/>"
            f"<source file='{self.disk}'/><target dev='vda' bus='virtio'/>"
            f"</disk>{ports}<memballoon model='none'/>"
            f"<serial type='file'><source path='{self.serial}'/></serial>"
            f"{hostdev}</devices></domain>"
        )

    def __enter__(self) -> "Domain":
        virsh("create", str(self.definition))
        return self

    def __exit__(self, *_: object) -> None:
        virsh("destroy", self.name)
        for path in (self.disk, self.serial, self.definition):
            path.unlink(missing_ok=True)

    def said(self) -> str:
        """Return what the guest wrote to its serial port."""
        return self.serial.read_text() if self.serial.exists() else ""

    def current_xml(self) -> str:
        return virsh("dumpxml", self.name)


@pytest.fixture
def mdev(lab: pathlib.Path) -> Iterator[str]:
    name = str(uuid.uuid4())
    assert write(lab, f"{TYPE}/create", name) == ""
    yield name
    if name in remote(lab, "ls", DEVICES):
        assert write(lab, f"{DEVICES}/{name}/remove", "1") == ""


def node_device(mdev: str) -> str:
    """Return libvirt's name of an mdev of mtty."""
    return f"mdev_{mdev.replace('-', '_')}_mtty"


def test_types_of_the_sample_driver_are_seen(lab: pathlib.Path) -> None:
    assert remote(lab, "ls", TYPES).split() == ["mtty-1", "mtty-2"]
    api = remote(lab, "cat", f"{TYPE}/device_api")
    assert api.strip() == "vfio-pci"
    assert "mtty_mtty" in virsh("nodedev-list", "--cap", "mdev_types")


def test_made_through_sysfs_seen_by_all(lab: pathlib.Path, mdev: str) -> None:
    assert mdev in inside(lab, f"ls {DEVICES}").split()
    wait_for(
        lambda: (
            node_device(mdev) in virsh("nodedev-list", "--cap", "mdev").split()
        ),
        "libvirt's node device",
    )
    assert write(lab, f"{DEVICES}/{mdev}/remove", "1") == ""
    assert mdev not in inside(lab, f"ls {DEVICES}").split()
    wait_for(
        lambda: (
            node_device(mdev)
            not in virsh("nodedev-list", "--cap", "mdev").split()
        ),
        "the end of libvirt's node device",
    )


def test_domain_holds_the_mdev_and_lets_go(
    lab: pathlib.Path, mdev: str
) -> None:
    with Domain(lab, mdev_hostdev(mdev)) as domain:
        assert f"uuid='{mdev}'" in domain.current_xml()
        wait_for(lambda: "U" in domain.said(), "the guest from its qcow2")
        device = vm.shared_dir(lab) / f"{domain.name}.hostdev"
        device.write_text(mdev_hostdev(mdev))
        virsh("detach-device", domain.name, str(device), "--live")
        device.unlink()
        wait_for(
            lambda: "<hostdev" not in domain.current_xml(),
            "the guest to eject the mdev",
        )
        assert "E" in domain.said()


def test_no_instance_left_is_enospc(lab: pathlib.Path) -> None:
    made: list[str] = []
    try:
        left = int(remote(lab, "cat", f"{TYPE}/available_instances"))
        assert left > 0
        for _ in range(left):
            made.append(str(uuid.uuid4()))
            assert write(lab, f"{TYPE}/create", made[-1]) == ""
        assert remote(lab, "cat", f"{TYPE}/available_instances") == "0\n"
        refused = write(lab, f"{TYPE}/create", str(uuid.uuid4()))
        assert refused == errno.errorcode[errno.ENOSPC]
    finally:
        for name in made:
            write(lab, f"{DEVICES}/{name}/remove", "1")


def test_what_is_not_a_uuid_is_einval(lab: pathlib.Path) -> None:
    refused = write(lab, f"{TYPE}/create", "not-a-uuid")
    assert refused == errno.errorcode[errno.EINVAL]


def test_whole_function_goes_in_and_comes_back(lab: pathlib.Path) -> None:
    node = f"/sys/bus/pci/devices/{topology.T4_ADDRESS}"

    def driver() -> str:
        script = f"readlink {node}/driver || true"
        return inside(lab, script).strip().rpartition("/")[2]

    assert remote(lab, "cat", f"{node}/vendor") == "0x10de\n"
    assert remote(lab, "cat", f"{node}/device") == "0x1eb8\n"
    before = driver()
    assert before != "vfio-pci"
    with Domain(lab, pci_hostdev(topology.T4_ADDRESS)) as domain:
        assert "managed='yes'" in domain.current_xml()
        assert driver() == "vfio-pci"
        wait_for(lambda: "U" in domain.said(), "the guest")
    assert driver() == before


def test_virtual_functions_have_groups_of_their_own(
    lab: pathlib.Path,
) -> None:
    node = f"/sys/bus/pci/devices/{topology.A40_ADDRESS}"
    assert remote(lab, "cat", f"{node}/sriov_totalvfs") == "16\n"
    functions = f'. "$LAB_GUEST/lib.sh"; lab_vfs {topology.A40_ADDRESS}'
    inside(lab, f"{functions} 4")
    try:
        links = remote(
            lab,
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
        inside(lab, f"{functions} 0")


@pytest.mark.parametrize("status", [0, 7])
def test_status_of_a_job_comes_back(
    lab: pathlib.Path, tmp_path: pathlib.Path, status: int
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"echo from $(hostname); exit {status}\n")
    command = (sys.executable, "-m", "tests.lab.vm", "--lab", str(lab))
    done = run(*command, "run", str(job))
    assert done.returncode == status, done.stderr
    assert done.stdout == "from labvm\n"
