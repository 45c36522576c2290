# SPDX-License-Identifier: Apache-2.0
"""The lab VM as "the compute host's hardware and libvirtd".

Services that run natively on this machine reach its libvirtd over TCP, its
/sys and its FPGAs' devices through FUSE mounts, and its shell through a
command channel; all on 127.0.0.1.

Number 0 is the machine with all the devices. The others are further hosts
beside it, small ones, which have mtty's devices, and the cards on request.
"""

import contextlib
import dataclasses
import pathlib
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

from tests.lab.vm import (
    errors,
    layout,
    machine,
    processes,
    progress,
    topology,
)
from tests.lab.vm.artifacts import remotefs

#: loaded in the served machine; a new fake driver is added here
SERVED_MODULES = (
    "vfio",
    "vfio_iommu_type1",
    "vfio-pci",
    "mdev",
    "nvme",
    "mtty",
)

#: loaded in a further machine
_FURTHER_MODULES = ("vfio", "vfio_iommu_type1", "mdev", "mtty")
#: what libvirtd and a few guests of 64 MiB take there
_FURTHER_MIB = 1024

#: $0 becomes /sys, $1 lies over /usr/lib, $2 becomes /dev with what is
#: mounted below that, $3 has the kernel's release; the rest is the command
_MOUNTS = """
mount --bind "$0" /sys &&
mount --bind "$3" /proc/sys/kernel/osrelease &&
mount -t overlay -o "ro,lowerdir=$1:/usr/lib" nova-accel-lab /usr/lib &&
for dir in /dev/*/; do
    ! mountpoint -q "$dir" || mount --rbind "$dir" "$2/${dir#/dev/}" || exit
done &&
mount --rbind "$2" /dev &&
shift 3 && exec "$@"
"""
_RECORDS = "processes.json"
_SHARE = "share"
#: what a machine writes anew at each start
_VOLATILE = (
    "ready",
    "rc",
    "job",
    "virt-type",
    "console",
    *("kernel.log", "qemu.log", "libvirtd.log", "remotefs.log"),
)


def _ports(number: int) -> dict[int, int]:
    base = layout.port_base(number)
    return {base: 16509, base + 1: 7001, base + 2: 9999}


def is_up(lab: pathlib.Path, number: int = 0) -> bool:
    """Return whether a served machine runs and its /sys is mounted."""
    place = layout.layout_of(lab, number)
    records = processes.load(place.serve / _RECORDS)
    return (
        {"qemu", "remotefs", "remotedev"} <= records.keys()
        and all(record.is_alive() for record in records.values())
        and remotefs.is_mounted(place.sysfs)
        and remotefs.is_mounted(place.dev)
    )


def start(
    lab: pathlib.Path,
    *,
    share: pathlib.Path,
    number: int = 0,
    is_disk_kept: bool = False,
    has_cards: bool = False,
    processors: int = 1,
    timeout_s: float = 300,
) -> None:
    """Boot a served machine and mount its /sys; nothing if it is up.

    A further machine has the PCI functions only if ``has_cards``.

    ``share`` is created and is read-write inside at the same path. With
    ``is_disk_kept`` libvirt inside has the domains that it had when the
    machine was switched off. Raises BootError, with the reason, when it is
    not ready in ``timeout_s``.
    """
    if is_up(lab, number):
        return
    stop(lab, number)
    say = progress.Progress()
    place = layout.layout_of(lab, number)
    shared = layout.check_path(share)
    shared.mkdir(parents=True, exist_ok=True)
    if place.disk.exists() and not is_disk_kept:
        shutil.rmtree(place.disk)
    place.disk.mkdir(parents=True, exist_ok=True)
    for name in _VOLATILE:
        (place.serve / name).unlink(missing_ok=True)
    (place.serve / _SHARE).write_text(f"{shared}\n")
    shutil.copy(layout.GUEST_FILES / "serve", place.serve / "job")
    _copy_capabilities(lab, place)
    try:
        boot = _machine(place, shared, has_cards)
        boot = dataclasses.replace(boot, processors=processors)
        _boot(boot, timeout_s)
        say.say("lab VM ready: libvirtd, devices")
        _mount_sysfs(place)
    except BaseException:
        stop(lab, number)
        raise
    say.say(f"its /sys is mounted on {place.sysfs}")


def _machine(
    place: layout.Layout, shared: pathlib.Path, has_cards: bool
) -> machine.Machine:
    is_first = place.number == 0
    has_cards |= is_first
    modules = SERVED_MODULES if has_cards else _FURTHER_MODULES
    return machine.Machine(
        place=place,
        run_dir=place.serve,
        devices=topology.STANDARD if has_cards else topology.NO_DEVICES,
        memory_mib=machine.MEMORY_MIB if is_first else _FURTHER_MIB,
        share=shared,
        forwards=_ports(place.number),
        ports=remotefs.PORTS,
        options={"load": ",".join(modules)},
    )


def _copy_capabilities(lab: pathlib.Path, place: layout.Layout) -> None:
    """Spare libvirt in a further machine to probe the same QEMU again."""
    first_capabilities = layout.layout_of(lab).capabilities
    if first_capabilities.exists() and not place.capabilities.exists():
        shutil.copytree(first_capabilities, place.capabilities)


def _boot(boot: machine.Machine, timeout_s: float) -> None:
    records = machine.start_file_servers(boot)
    processes.save(boot.run_dir / _RECORDS, records)
    records["qemu"] = processes.spawn(
        boot.arguments(),
        cwd=boot.run_dir,
        log=boot.run_dir / "qemu.log",
    )
    processes.save(boot.run_dir / _RECORDS, records)
    deadline = time.monotonic() + timeout_s
    while not (boot.run_dir / "ready").exists():
        if not records["qemu"].is_alive():
            raise errors.BootError(_why(boot.run_dir, "the lab VM ended"))
        if time.monotonic() > deadline:
            text = f"the lab VM was not ready in {timeout_s:.0f} s"
            raise errors.BootError(_why(boot.run_dir, text))
        time.sleep(0.05)


def _why(run_dir: pathlib.Path, text: str) -> str:
    lines = [f"{text}; the ends of its logs in {run_dir}:"]
    for name in ("qemu.log", "kernel.log", "console", "libvirtd.log"):
        path = run_dir / name
        if path.exists():
            tail = path.read_text(errors="replace").splitlines()[-8:]
            lines += [f"{name}: {line}" for line in tail]
    return "\n".join(lines)


def _mount_sysfs(place: layout.Layout) -> None:
    log = place.serve / "remotefs.log"
    clients = remotefs.mount(place, log)
    records = processes.load(place.serve / _RECORDS)
    processes.save(place.serve / _RECORDS, records | clients)
    remotefs.await_mount(place, clients.values())


def switch_off(lab: pathlib.Path, number: int = 0) -> None:
    """Take the power from a served machine: nothing in it can end.

    Its disk is there for :func:`start`.
    """
    place = layout.layout_of(lab, number)
    records = processes.load(place.serve / _RECORDS)
    if "qemu" in records:
        records["qemu"].terminate(grace_s=3)
    stop(lab, number)


def stop(lab: pathlib.Path, number: int = 0) -> None:
    """End what :func:`start` began; nothing when nothing runs."""
    place = layout.layout_of(lab, number)
    records = processes.load(place.serve / _RECORDS)
    remotefs.unmount(place)
    for name in {"remotefs", "remotedev"} & records.keys():
        records[name].terminate(grace_s=2)
    qemu = records.get("qemu")
    if qemu and qemu.is_alive():
        with contextlib.suppress(errors.LabVmError, OSError):
            _command(place, ["sh", "-c", "echo stop > /run/stop"], 5)
            _await_end(place, qemu)
        qemu.terminate(grace_s=3)
    for record in records.values():
        record.terminate(grace_s=2)
    for path in (place.serve / _RECORDS, *place.serve.glob("*.sock")):
        path.unlink(missing_ok=True)


def _await_end(place: layout.Layout, qemu: processes.ProcessRecord) -> None:
    """Wait until the machine's job has ended; there is no more to save."""
    deadline = time.monotonic() + 20
    while qemu.is_alive() and not (place.serve / "rc").exists():
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def exec_prefix(lab: pathlib.Path, number: int = 0) -> list[str]:
    """Return what to put before a command so that /sys is the machine's.

    The command gets a private mount namespace, in which /usr/lib has the
    vendor's tools and /dev the machine's FPGAs too, and /proc has the release
    of the machine's kernel. libudev is set not to insist that /sys is a sysfs.
    """
    place = layout.layout_of(lab, number)
    return [
        "env",
        "SYSTEMD_DEVICE_VERIFY_SYSFS=0",
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        _MOUNTS,
        str(place.sysfs),
        str(place.usr_lib),
        str(place.dev),
        str(place.kernel_version),
    ]


def shared_dir(lab: pathlib.Path) -> pathlib.Path:
    """Return the directory that the served machine shares with us."""
    place = layout.layout_of(lab)
    return pathlib.Path((place.serve / _SHARE).read_text().strip())


def virt_type(lab: pathlib.Path, number: int = 0) -> str:
    """Return the libvirt domain type that works inside: kvm or qemu."""
    place = layout.layout_of(lab, number)
    return (place.serve / "virt-type").read_text().strip()


def guest_exec(
    lab: pathlib.Path,
    argv: Sequence[str],
    timeout_s: float = 60,
    number: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a command inside a served machine, as root.

    Returns its exit status and output; the status is 124 when the machine
    stopped it after ``timeout_s``. Raises NotRunningError when the machine
    is not up.
    """
    place = layout.layout_of(lab, number)
    records = processes.load(place.serve / _RECORDS)
    if "qemu" not in records or not records["qemu"].is_alive():
        msg = "the lab VM is not up: start it first"
        raise errors.NotRunningError(msg)
    return _command(place, argv, timeout_s)


def _command(
    place: layout.Layout, argv: Sequence[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    calls = place.serve / "exec"
    calls.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=calls) as name:
        call = pathlib.Path(name)
        (call / "run").write_text(f"exec {shlex.join(argv)}\n")
        base = layout.port_base(place.number)
        request = f"{call.name} {timeout_s:g}\n"
        status = _call_channel(base + 1, request, timeout_s)
        return subprocess.CompletedProcess(
            list(argv),
            status,
            (call / "out").read_text(errors="replace"),
            (call / "err").read_text(errors="replace"),
        )


def _call_channel(port: int, request: str, timeout_s: float) -> int:
    address = ("127.0.0.1", port)
    # the machine keeps the time; we only guard against its death
    with socket.create_connection(address, timeout_s + 10) as channel:
        channel.sendall(request.encode())
        answer = b""
        with contextlib.suppress(TimeoutError):
            while chunk := channel.recv(64):
                answer += chunk
    if not answer.strip().isdigit():
        msg = (
            "the lab VM did not answer on the command channel: see "
            "kernel.log and console in its serve directory; stop, start"
        )
        raise errors.NotRunningError(msg)
    return int(answer)
