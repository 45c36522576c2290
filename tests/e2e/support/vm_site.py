# SPDX-License-Identifier: Apache-2.0
"""The lab VM without a cloud, for tests: its kernel and its libvirt."""

import pathlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

from tests.lab import vm
from tests.lab.vm import layout

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
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


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - argv of a test
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

    def console_output(self) -> str:
        """Return what the guest wrote to its serial port."""
        return self.serial.read_text() if self.serial.exists() else ""

    def current_xml(self) -> str:
        return virsh("dumpxml", self.name)
