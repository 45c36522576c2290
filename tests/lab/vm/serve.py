# SPDX-License-Identifier: Apache-2.0
"""The lab VM as "the compute host's hardware and libvirtd".

Services that run natively on this machine reach its libvirtd over TCP, its
/sys and its FPGAs' devices through FUSE mounts, and its shell through a
command channel; all on 127.0.0.1.
"""

import contextlib
import pathlib
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

from tests.lab.vm import errors, layout, machine, processes, progress, remotefs

#: loaded in the served machine; a new stand-in module is added here
SERVED_MODULES = (
    "vfio",
    "vfio_iommu_type1",
    "vfio-pci",
    "mdev",
    "nvme",
    "mtty",
)

#: $0 becomes /sys, $1 lies over /usr/lib, $2 becomes /dev with what is
#: mounted below that; the rest is the command
_MOUNTS = """
mount --bind "$0" /sys &&
mount -t overlay -o "ro,lowerdir=$1:/usr/lib" nova-accel-lab /usr/lib &&
for dir in /dev/*/; do
    ! mountpoint -q "$dir" || mount --rbind "$dir" "$2/${dir#/dev/}" || exit
done &&
mount --rbind "$2" /dev &&
shift 2 && exec "$@"
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


def _ports() -> dict[int, int]:
    base = layout.port_base()
    return {base: 16509, base + 1: 7001}


def is_up(lab: pathlib.Path) -> bool:
    """Return whether the served machine runs and its /sys is mounted."""
    place = layout.layout_of(lab)
    records = processes.load(place.serve / _RECORDS)
    return (
        {"qemu", "remotefs", "remotedev"} <= records.keys()
        and all(record.is_alive() for record in records.values())
        and remotefs.is_mounted(place.sysfs)
        and remotefs.is_mounted(place.dev)
    )


def start(
    lab: pathlib.Path, *, share: pathlib.Path, timeout_s: float = 300
) -> None:
    """Boot the served machine and mount its /sys; nothing if it is up.

    ``share`` is created and is read-write inside at the same path. Raises
    BootError, with the reason, when it is not ready in ``timeout_s``.
    """
    if is_up(lab):
        return
    stop(lab)
    say = progress.Progress()
    place = layout.layout_of(lab)
    shared = layout.check_path(share)
    shared.mkdir(parents=True, exist_ok=True)
    place.serve.mkdir(parents=True, exist_ok=True)
    for name in _VOLATILE:
        (place.serve / name).unlink(missing_ok=True)
    (place.serve / _SHARE).write_text(f"{shared}\n")
    shutil.copy(layout.GUEST_FILES / "serve", place.serve / "job")
    boot = machine.Machine(
        place=place,
        run_dir=place.serve,
        share=shared,
        forwards=_ports(),
        ports=remotefs.PORTS,
        options={"load": ",".join(SERVED_MODULES)},
    )
    try:
        _boot(boot, timeout_s)
        say.say("lab VM ready: libvirtd, devices")
        _mount_sysfs(place)
    except BaseException:
        stop(lab)
        raise
    say.say(f"its /sys is mounted on {place.sysfs}")


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


def stop(lab: pathlib.Path) -> None:
    """End what :func:`start` began; nothing when nothing runs."""
    place = layout.layout_of(lab)
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


def exec_prefix(lab: pathlib.Path) -> list[str]:
    """Return what to put before a command so that /sys is the machine's.

    The command gets a private mount namespace, in which /usr/lib has the
    vendor's tools and /dev the machine's FPGAs too. libudev is told not to
    insist that /sys is a sysfs.
    """
    place = layout.layout_of(lab)
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
    ]


def shared_dir(lab: pathlib.Path) -> pathlib.Path:
    """Return the directory that the served machine shares with us."""
    place = layout.layout_of(lab)
    return pathlib.Path((place.serve / _SHARE).read_text().strip())


def virt_type(lab: pathlib.Path) -> str:
    """Return the libvirt domain type that works inside: kvm or qemu."""
    place = layout.layout_of(lab)
    return (place.serve / "virt-type").read_text().strip()


def guest_exec(
    lab: pathlib.Path, argv: Sequence[str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command inside the served machine, as root.

    Returns its exit status and output; the status is 124 when the machine
    stopped it after ``timeout_s``. Raises NotRunningError when the machine
    is not up.
    """
    place = layout.layout_of(lab)
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
        status = _call_channel(f"{call.name} {timeout_s:g}\n", timeout_s)
        return subprocess.CompletedProcess(
            list(argv),
            status,
            (call / "out").read_text(errors="replace"),
            (call / "err").read_text(errors="replace"),
        )


def _call_channel(request: str, timeout_s: float) -> int:
    address = ("127.0.0.1", layout.port_base() + 1)
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
