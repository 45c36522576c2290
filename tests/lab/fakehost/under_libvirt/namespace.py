# SPDX-License-Identifier: Apache-2.0
"""Process 1 inside the namespaces.

Started by __main__.py through unshare(1): never by hand, it mounts over
/sys, /run and more. Mounts and processes end with this process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.fakehost.control.controller import (
    ENVIRONMENT,
    Controller,
    FakehostError,
)
from tests.lab.fakehost.mount import start_server
from tests.lab.fakehost.spec import HostSpec

HOSTNAME = "fakehost"
CONTROL = Path("/run/fakehost/control")
#: Kept of the real sysfs: nothing of it is an accelerator, libvirt and
#: libudev want it.
REAL = (
    "class/net",
    "devices/system",
    "devices/virtual/dmi",
    "devices/virtual/net",
    "fs/cgroup",
    "kernel/mm",
)
#: Directories that libvirt and mdevctl write to: empty ones of our own.
PRIVATE = (
    "/run",
    "/var/lib/libvirt",
    "/var/log/libvirt",
    "/etc/mdevctl.d",
    "/dev/vfio",
)
LIBVIRTD_CONF = """\
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "2:file:{state}/libvirtd.log"
"""
QEMU_CONF = """\
stdio_handler = "file"
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
"""
START_S = 60.0
STOP_S = 5.0
POLL_S = 0.05


class Namespace:
    """The steps from an unshared process to a host with libvirt."""

    def __init__(self, lab: Path, state: Path) -> None:
        self._lab = lab
        self._state = state
        self._standins = lab / "standins"

    def set_up(self) -> None:
        """Do all of it; raises FakehostError or CalledProcessError."""
        self._name_host()
        self._private_directories()
        self._simulate_sys()
        self._start_libvirtd()
        self._wait_for_devices()

    def tear_down(self) -> None:
        """End the kernel, which takes its nodes out of /dev."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(STOP_S)

    def _name_host(self) -> None:
        _run("mount", "--make-rprivate", "/")
        _run("ip", "link", "set", "lo", "up")
        socket.sethostname(HOSTNAME)
        hosts = self._state / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {HOSTNAME}\n")
        _run("mount", "--bind", hosts, "/etc/hosts")

    def _private_directories(self) -> None:
        etc = self._state / "etc-libvirt"
        (etc / "qemu").mkdir(parents=True)
        (etc / "qemu.conf").write_text(QEMU_CONF)
        # probing an emulator takes seconds: what it found stays
        cache = self._lab / "cache"
        cache.mkdir(exist_ok=True)
        for directory in PRIVATE:
            Path(directory).mkdir(parents=True, exist_ok=True)
            _run("mount", "-t", "tmpfs", "fakehost", directory)
        for source, target in (
            (etc, "/etc/libvirt"),
            (cache, "/var/cache/libvirt"),
        ):
            Path(target).mkdir(parents=True, exist_ok=True)
            _run("mount", "--bind", source, target)
        for name in ("fakehost", "libvirt", "lock", "udev"):
            Path("/run", name).mkdir()
        for name in ("callouts", "notifiers"):
            scripts = Path("/etc/mdevctl.d/scripts.d", name)
            scripts.mkdir(parents=True)
        # libudev takes this for a running udevd, and so listens to the
        # group on which we send what udevd would
        Path("/run/udev/control").touch()

    def _simulate_sys(self) -> None:
        mountpoint, real = self._state / "sys", self._state / "real"
        mountpoint.mkdir()
        real.mkdir()
        # a new one, for it shows the network namespace it is mounted in
        _run("mount", "-t", "sysfs", "sysfs", real)
        if os.path.ismount("/sys/fs/cgroup"):
            _run("mount", "--rbind", "/sys/fs/cgroup", real / "fs/cgroup")
        spec = HostSpec.from_json((self._state / "spec.json").read_text())
        self._server = start_server(
            spec,
            mountpoint,
            control=CONTROL,
            vfio_dir=Path("/dev/vfio"),
            netlink=True,
        )
        for path in REAL:
            if (real / path).is_dir() and (mountpoint / path).is_dir():
                _run("mount", "--rbind", real / path, mountpoint / path)
        _run("mount", "--rbind", mountpoint, "/sys")

    def _start_libvirtd(self) -> None:
        configuration = Path("/run/libvirtd.conf")
        configuration.write_text(LIBVIRTD_CONF.format(state=self._state))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
        } | {
            "LD_PRELOAD": str(self._standins / "norlimit.so"),
            # the emulator it is to find first
            "PATH": f"{self._standins}/bin:{os.environ['PATH']}",
            # libudev (systemd >= 251) otherwise wants a sysfs at /sys
            "SYSTEMD_DEVICE_VERIFY_SYSFS": "0",
        }
        with (self._state / "libvirtd.err").open("wb") as errors:
            self._libvirtd = subprocess.Popen(  # noqa: S603
                ["libvirtd", "--config", str(configuration)],  # noqa: S607
                env=environment,
                stderr=errors,
                stdout=errors,
            )

    def _wait_for_devices(self) -> None:
        """Return when libvirt has listed every function and parent."""
        controller = Controller(CONTROL)
        functions = len(controller.functions())
        controller.close()
        parents = len(os.listdir("/sys/class/mdev_bus"))
        limit = time.monotonic() + START_S
        while time.monotonic() < limit:
            if self._libvirtd.poll() is not None:
                text = (self._state / "libvirtd.err").read_text()
                raise FakehostError(f"libvirtd ended: {text[-2000:]}")
            if (
                _listed("pci") >= functions
                and _listed("mdev_types") >= parents
            ):
                return
            time.sleep(POLL_S)
        raise FakehostError(
            f"libvirt does not show {functions} PCI functions after "
            f"{START_S:.0f} s; its log is in {self._state}"
        )


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)  # noqa: S603


def _listed(capability: str) -> int:
    """Return how many node devices of a kind libvirt shows, -1: none yet."""
    done = subprocess.run(  # noqa: S603
        [
            *("virsh", "-q", "-c", "qemu:///system"),
            *("nodedev-list", "--cap", capability),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return len(done.stdout.split()) if done.returncode == 0 else -1


def run_as_init(command: list[str], environment: dict[str, str]) -> int:
    """Run ``command`` and reap every orphan, as process 1 must.

    A QEMU that libvirt ended would else stay a zombie, and libvirt waits
    for it to be gone. Returns the command's exit status.
    """
    child = subprocess.Popen(command, env=environment)  # noqa: S603
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def main() -> int:
    """Set the host up and run the command in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    start = time.monotonic()
    namespace = Namespace(options.lab, options.state)
    try:
        namespace.set_up()
    except (FakehostError, subprocess.CalledProcessError, OSError) as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return 125
    spent = time.monotonic() - start
    print(f"fakehost: up after {spent:.1f} s", file=sys.stderr, flush=True)
    command = shutil.which(options.command[0]) or options.command[0]
    environment = os.environ | {
        ENVIRONMENT: str(CONTROL),
        "FAKEHOST_GUEST": str(options.lab / "standins/acker.img"),
        "LIBVIRT_DEFAULT_URI": "qemu:///system",
        "SYSTEMD_DEVICE_VERIFY_SYSFS": "0",
    }
    status = run_as_init([command, *options.command[1:]], environment)
    namespace.tear_down()
    return status


if __name__ == "__main__":
    status = main()
    # process 1 ends: the kernel kills all the others
    os._exit(status if status >= 0 else 128 - status)
