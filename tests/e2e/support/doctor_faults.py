# SPDX-License-Identifier: Apache-2.0
"""Faults of a host, and the findings of ``nova-accel doctor`` about them.

Inside the lab VM, ``python -m tests.e2e.support.doctor_faults MACHINE FILE``
makes the faults of a machine one after another and writes the doctor's reports
as JSON: by the name of the fault, and as ``healthy`` before all of them.
"""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nova_accel.cli import commands
from tests.lab.vm import topology

HEALTHY = "healthy"
_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
_FUNCTIONS = "/sys/bus/pci/devices"
# Bits of the register of uncorrectable errors (PCI Express 7.8.4.2): a
# poisoned TLP is not fatal, a malformed TLP is.
_POISONED, _MALFORMED = 1 << 12, 1 << 18
_OTHER_RELEASE = "6.1.0-99-amd64"
_OTHER_MODULES = f"/lib/modules/{_OTHER_RELEASE}"


class Finding(NamedTuple):
    """Verdict of a check, and a part of its text."""

    verdict: str
    text: str


class Fault(NamedTuple):
    """Fault, with the lines of a shell that make it and undo it.

    Each line has to succeed, but for those before ``&&``. ``runner`` is a
    command that runs the doctor in another environment.
    """

    findings: Mapping[str, Finding]
    make: str
    undo: str = ""
    runner: Sequence[str] = ()


def _inject(status: int, counter: str) -> str:
    """Return the lines that inject an error into the GPU with AER.

    The bytes are those of struct aer_error_inj
    (drivers/pci/pcie/aer_inject.c).
    """
    bus = int(topology.AER_ADDRESS.split(":")[1], 16)
    words = (status, *[0] * 6)
    data = bytes((bus, 0, 0, 0)) + b"".join(
        word.to_bytes(4, "little") for word in words
    )
    text = "".join(f"\\{byte:03o}" for byte in data)
    path = f"{_FUNCTIONS}/{topology.AER_ADDRESS}/{counter}"
    return f"""
        modprobe aer_inject
        printf '{text}' > /dev/aer_inject
        timeout 60 sh -c "until tail -n 1 {path} | grep -qw '1$'; do
            sleep 0.1
        done"
    """


def _container() -> list[str]:
    """Return a container without mounts of the host, but for the program."""
    python = (sys.prefix, sys.base_prefix)
    mounts = {pathlib.Path(path).resolve() for path in python} | {_REPOSITORY}
    return [
        *("systemd-nspawn", "--quiet", "--pipe", "--directory=/"),
        *("--volatile=yes", "--register=no", "--keep-unit"),
        *(f"--bind-ro={path}" for path in sorted(mounts)),
        f"--setenv=PYTHONPATH={_REPOSITORY}",
        "--setenv=PYTHONDONTWRITEBYTECODE=1",
        str(pathlib.Path(sys.prefix).resolve() / "bin/python"),
        *("-m", "nova_accel.cli.commands"),
    ]


# The GPU with AER is bound to vfio-pci before. Errors are counted up to the
# next start of the host: those faults are last, the fatal one after all.
FAULTS = {
    "driver-in-group": Fault(
        {
            "iommu.group": Finding(
                "fail",
                f"{topology.GROUPED_ADDRESS} shares IOMMU group 8 with"
                f" {topology.SIBLING_ADDRESS} (nvme)",
            )
        },
        make=f"""
            modprobe nvme
            [ -e {_FUNCTIONS}/{topology.SIBLING_ADDRESS}/driver ]
        """,
        undo="modprobe --remove nvme",
    ),
    "read-only-sys": Fault(
        {"container.sysfs": Finding("fail", "/sys is mounted read-only")},
        make="""
            mount --bind /sys /sys
            mount -o remount,bind,ro /sys
        """,
        undo="umount /sys",
    ),
    "mode-of-control-node": Fault(
        {"vfio.control-mode": Finding("fail", "/dev/vfio/vfio has mode 0600")},
        make="chmod 0600 /dev/vfio/vfio",
        undo="chmod 0666 /dev/vfio/vfio",
    ),
    "missing-group-node": Fault(
        {
            "vfio.groups": Finding(
                "fail", f" of {topology.AER_ADDRESS} is missing"
            )
        },
        make="mkdir /run/nodes; mv /dev/vfio/[0-9]* /run/nodes",
        undo="mv /run/nodes/* /dev/vfio",
    ),
    "module-of-another-kernel": Fault(
        {
            "drv.kernel": Finding(
                "fail", f"gim is built for {_OTHER_RELEASE}, and "
            )
        },
        make=f"""
            mkdir -p {_OTHER_MODULES}/updates/dkms
            cp "/lib/modules/$(uname -r)/extra/mdpy.ko" \
                {_OTHER_MODULES}/updates/dkms/gim.ko
            modprobe gim && exit 1
            true
        """,
        undo=f"rm -r {_OTHER_MODULES}",
    ),
    "container-without-mounts": Fault(
        {
            "container.sysfs": Finding("fail", "/sys is mounted read-only"),
            "container.vfio": Finding("fail", "has no nodes of VFIO"),
            "container.udev": Finding("warn", "has no events of udev"),
        },
        make="""
            mountpoint -q /sys/fs/cgroup ||
                mount -t cgroup2 cgroup2 /sys/fs/cgroup
        """,
        runner=_container(),
    ),
    "unsigned-module": Fault(
        {"drv.unsigned": Finding("note", "gim is not signed")},
        make="""
            modprobe -a mdev vfio
            insmod "$LAB_SHARE/gim.ko"
        """,
        undo="rmmod gim",
    ),
    "no-room-for-vfs": Fault(
        {
            "pci.vf-bars": Finding(
                "fail", f"{topology.HUNGRY_ADDRESS} can't have its 16 VFs"
            )
        },
        make=f"""
            . "$LAB_GUEST/lib.sh"
            lab_vfs {topology.HUNGRY_ADDRESS} 16 && exit 1
            dmesg | grep -q 'not enough MMIO resources for SR-IOV'
        """,
    ),
    "error": Fault(
        {
            "pci.aer-nonfatal": Finding(
                "note", f"{topology.AER_ADDRESS} had 1 uncorrected PCIe errors"
            )
        },
        make=_inject(_POISONED, "aer_dev_nonfatal"),
    ),
    "fatal-error": Fault(
        {
            "pci.aer-fatal": Finding(
                "warn",
                f"the root port of {topology.AER_ADDRESS} had 1 fatal PCIe",
            )
        },
        make=_inject(_MALFORMED, "../aer_rootport_total_err_fatal"),
    ),
}
# On a machine with lockdown=integrity. Modules of Debian are signed by the
# key in the kernel.
LOCKDOWN_FAULTS = {
    "refused-module": Fault(
        {
            "drv.secure-boot": Finding(
                "warn", "gim is installed and not loaded under lockdown="
            )
        },
        make="""
            modprobe -a mdev vfio
            # The lab's modules are behind a link that the doctor does not
            # follow, and some of them have names of vendors' drivers.
            rm "/lib/modules/$(uname -r)"
            directory="/lib/modules/$(uname -r)/updates/dkms"
            mkdir -p "$directory"
            cp "$LAB_SHARE/gim.ko" "$directory"
            insmod "$directory/gim.ko" && exit 1
            dmesg | grep -q 'Lockdown: insmod: unsigned module loading'
        """,
    )
}
_COMMON = """
    # The files of this root say that it is a container's.
    rm -f /.dockerenv /run/.containerenv
    mount -t securityfs securityfs /sys/kernel/security
"""
_BIND_GPU = f"""
    modprobe -a vfio-pci vfio_iommu_type1
    cd {_FUNCTIONS}/{topology.AER_ADDRESS}
    echo vfio-pci > driver_override
    echo {topology.AER_ADDRESS} > /sys/bus/pci/drivers_probe
    [ -e driver ]
"""
#: by the name of a machine: its preparation, and its faults
MACHINES = {
    "faulty": (_BIND_GPU, FAULTS),
    "lockdown": ("", LOCKDOWN_FAULTS),
    "iommu-off": ("", {}),
}


def _run_lines(lines: str) -> None:
    subprocess.run(["/bin/sh", "-ec", lines], check=True)  # noqa: S603


def _check(names: Sequence[str], runner: Sequence[str]) -> dict[str, Any]:
    """Return the report of some checks; those of all areas without names."""
    arguments = [
        "doctor",
        "-f",
        "json",
        *(["--only", *names] if names else []),
    ]
    if runner:
        done = subprocess.run(  # noqa: S603
            [*runner, *arguments], stdout=subprocess.PIPE, check=False
        )
        return dict(json.loads(done.stdout))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        commands.main(arguments)
    return dict(json.loads(output.getvalue()))


def list_reports(faults: Mapping[str, Fault]) -> dict[str, dict[str, Any]]:
    """Return the doctor's reports: before any fault, and with each one."""
    reports = {HEALTHY: _check((), ())}
    for name, fault in faults.items():
        print(name, flush=True)
        _run_lines(fault.make)
        reports[name] = _check(tuple(fault.findings), fault.runner)
        _run_lines(fault.undo)
    return reports


def main(machine: str, path: str) -> None:
    """Make the faults of a machine and write the reports."""
    prepare, faults = MACHINES[machine]
    _run_lines(_COMMON + prepare)
    pathlib.Path(path).write_text(json.dumps(list_reports(faults)))


if __name__ == "__main__":
    main(*sys.argv[1:])
