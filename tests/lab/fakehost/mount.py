# SPDX-License-Identifier: Apache-2.0
"""A simulated /sys on a plain directory: no namespace, no libvirt."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab.fakehost.control.controller import Controller, FakehostError
from tests.lab.fakehost.spec import HostSpec

REPOSITORY = Path(__file__).resolve().parents[3]
#: What a simulated host runs: a kernel that moves the state of vGPUs.
KERNEL_RELEASE = "6.8.0-45-generic"
START_S = 30.0
STOP_S = 10.0


def missing() -> str:
    """Return why no sysfs can be simulated here, "" if it can."""
    if os.geteuid() != 0:
        return "the simulated sysfs needs root (it mounts)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "the simulated sysfs needs /dev/fuse (modprobe fuse)"
    if importlib.util.find_spec("mfusepy") is None:
        return "the simulated sysfs needs mfusepy (pip install mfusepy)"
    if ctypes.util.find_library("fuse3") is None:
        return "the simulated sysfs needs libfuse 3 (apt install fuse3)"
    return ""


@contextlib.contextmanager
def simulated_sysfs(spec: HostSpec, root: Path) -> Iterator[Controller]:
    """Mount ``spec`` at ``root/sys`` and yield its controller.

    Group nodes appear in ``root/dev/vfio``. A process of its own serves
    the mount, and ends with this one whatever happens. Raises
    FakehostError when it does not come up.
    """
    mountpoint = root / "sys"
    mountpoint.mkdir(parents=True, exist_ok=True)
    # a Unix socket's path is short (108 bytes); a test's directory is not
    with tempfile.TemporaryDirectory(prefix="fakehost-") as run:
        control = Path(run) / "control"
        server = start_server(
            spec, mountpoint, control=control, vfio_dir=root / "dev/vfio"
        )
        try:
            controller = Controller(control, root)
            controller.write_kernel_release(KERNEL_RELEASE)
            try:
                yield controller
            finally:
                controller.close()
        finally:
            stop_server(server, mountpoint)


class SmallDirectory:
    """A directory with a file system of its own, which a test fills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, remaining: int = 0) -> None:
        """Leave a number of bytes free, rounded down to a page."""
        usage = os.statvfs(self.path)
        size = usage.f_bavail * usage.f_frsize - remaining
        with self._filler.open("ab") as file:
            file.write(bytes(max(size, 0)))

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()

    def remount(self, option: str) -> None:
        """Remount it with an option, as ``ro``."""
        _run("mount", "-o", f"remount,{option}", str(self.path))


@contextlib.contextmanager
def small_directory(path: Path, options: str) -> Iterator[SmallDirectory]:
    """Mount a tmpfs of these options, as ``size=1m``, at a directory."""
    path.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    try:
        yield SmallDirectory(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - no input of users


def start_server(
    spec: HostSpec,
    mountpoint: Path,
    *,
    control: Path,
    vfio_dir: Path,
    netlink: bool = False,
) -> subprocess.Popen[bytes]:
    """Return a running server whose mount answers.

    It ends when its ``stdin`` closes. Raises FakehostError.
    """
    command = [
        sys.executable,
        *("-m", "tests.lab.fakehost.control.server", str(mountpoint)),
        *("--control", str(control), "--vfio-dir", str(vfio_dir)),
        *(["--netlink"] if netlink else []),
    ]
    server = subprocess.Popen(  # noqa: S603 - no input of users
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(spec.to_json().encode() + b"\n")
    server.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(server.stdout, selectors.EVENT_READ)
        answered = selector.select(START_S)
    if not answered or server.stdout.readline() != b"ready\n":
        stop_server(server, mountpoint)
        raise FakehostError(
            f"the simulated sysfs at {mountpoint} did not start (its "
            "error is above; see missing() for what it needs)"
        )
    return server


def stop_server(server: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """End the server and its mount."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    server.stdout.close()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    if os.path.ismount(mountpoint):
        _run("umount", "--lazy", str(mountpoint))
