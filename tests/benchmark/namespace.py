# SPDX-License-Identifier: Apache-2.0
"""A real libvirtd above a directory tree mounted as /sys.

As the fake host's namespaces, but with a plain tree as /sys: reading a file
costs as much as in the kernel's sysfs, not a round trip to a server.

    python -m tests.benchmark.namespace TREE COMMAND...
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.lab import fakehost
from tests.lab.fakehost import standins
from tests.lab.fakehost.__main__ import lab_directory
from tests.lab.fakehost.under_libvirt import namespace

#: Directories of the real sysfs that libvirt and libudev read.
_REAL = ("class/net", "devices/system", "devices/virtual", "fs/cgroup")
_START_S = 120.0


class StillNamespace(namespace.Namespace):
    """A host whose devices are in a plain tree and never change."""

    def __init__(
        self, lab: pathlib.Path, state: pathlib.Path, tree: pathlib.Path
    ) -> None:
        super().__init__(lab, state)
        self._tree = tree / "sys"

    def _simulate_sys(self) -> None:
        for path in _REAL:
            source = pathlib.Path("/sys", path)
            if source.is_dir():
                target = self._tree / path
                target.mkdir(parents=True, exist_ok=True)
                _run("mount", "--rbind", str(source), str(target))
        _run("mount", "--rbind", str(self._tree), "/sys")

    def _wait_for_devices(self) -> None:
        expected = len(os.listdir("/sys/class/mdev_bus"))
        limit = time.monotonic() + _START_S
        while namespace._listed("mdev_types") < expected:
            if time.monotonic() > limit:
                raise fakehost.FakehostError(
                    f"libvirt does not show {expected} mdev parents after"
                    f" {_START_S:.0f} s; its log is in {self._state}"
                )
            time.sleep(1)


def enter(tree: pathlib.Path, command: list[str]) -> int:
    """Run a command in the namespace; return its exit status."""
    lab = lab_directory()
    standins.build(lab / "standins")
    pathlib.Path("/dev/vfio").mkdir(exist_ok=True)  # a mount point
    return subprocess.run(  # noqa: S603
        [
            *("setpriv", "--pdeathsig", "KILL", "unshare"),
            *("--mount", "--net", "--ipc", "--uts", "--pid", "--fork"),
            *("--mount-proc", "--kill-child"),
            *(sys.executable, "-m", "tests.benchmark.namespace"),
            *(str(tree), *command),
        ],
        check=False,
    ).returncode


def _run(*words: str) -> None:
    subprocess.run(words, check=True)  # noqa: S603


def main() -> int:
    """Set the host up as process 1 and run the command in it."""
    tree, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=lab_directory()) as state:
        StillNamespace(
            lab_directory(), pathlib.Path(state), pathlib.Path(tree)
        ).set_up()
        environment = os.environ | {
            "LIBVIRT_DEFAULT_URI": "qemu:///system",
            "SYSTEMD_DEVICE_VERIFY_SYSFS": "0",
        }
        return namespace.run_as_init(command, environment)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)
