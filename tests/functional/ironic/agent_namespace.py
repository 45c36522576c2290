# SPDX-License-Identifier: Apache-2.0
"""Program in a mount namespace with the /sys and /dev of a simulated host.

    unshare --mount python -m tests.functional.ironic.agent_namespace \\
        ROOT STATE PROGRAM ARGUMENT...

ROOT has sys/ and, for FPGA cards, dev/. STATE is an empty directory.
"""

import os
import pathlib
import subprocess
import sys


def _mount(*words: str | pathlib.Path) -> None:
    subprocess.run(["mount", *words], check=True)  # noqa: S603, S607


def enter(root: pathlib.Path, state: pathlib.Path) -> None:
    """Mount the simulated files over this machine's."""
    _mount("--make-rprivate", "/")
    _replace_devices(root / "dev", state / "dev")
    # Its processors and memory are this machine's.
    system = "devices/system"
    _mount("--rbind", f"/sys/{system}", root / "sys" / system)
    _mount("--rbind", root / "sys", "/sys")
    # The agent reads addresses of eth0 from the kernel, and its name here.
    interfaces = state / "net"
    (interfaces / "eth0").mkdir(parents=True)
    (interfaces / "eth0/device").symlink_to("/sys/devices/virtual")
    (interfaces / "eth0/carrier").write_text("1\n")
    _mount("--bind", interfaces, "/sys/class/net")


def _replace_devices(simulated: pathlib.Path, place: pathlib.Path) -> None:
    """Mount a copy of /dev that has the simulated nodes too."""
    place.mkdir()
    _mount("-t", "tmpfs", "devices", place)
    nodes = {path.name: path for path in pathlib.Path("/dev").iterdir()}
    if simulated.is_dir():
        nodes |= {path.name: path for path in simulated.iterdir()}
    for name, node in nodes.items():
        target = place / name
        if node.is_symlink():
            target.symlink_to(node.readlink())
            continue
        if node.is_dir():
            target.mkdir()
        else:
            target.touch()
        _mount("--rbind", node, target)
    _mount("--rbind", place, "/dev")


if __name__ == "__main__":
    enter(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606
