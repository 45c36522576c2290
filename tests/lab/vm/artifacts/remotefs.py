# SPDX-License-Identifier: Apache-2.0
"""The served machine's /sys and some devices, mounted here.

SFTP (sshfs) would do for /sys but for its errors: it has no ENOSPC, no
EBUSY. The devices are those of FPGA cards, with their ioctls. The sources
of the two small programs are in the directory remotefs.
"""

import pathlib
import subprocess
import time
from collections.abc import Collection

from tests.lab.vm import errors, layout, processes
from tests.lab.vm.artifacts import run

#: serial ports between the two programs: name inside -> socket in the
#: machine's run directory. As many requests run at once.
SYS_PORTS = {f"lab.sys.{number}": f"sys{number}.sock" for number in range(4)}
DEV_PORTS = {f"lab.dev.{number}": f"dev{number}.sock" for number in range(2)}
PORTS = SYS_PORTS | DEV_PORTS

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "remotefs"


def sources() -> list[pathlib.Path]:
    """Return the source files."""
    return sorted(SOURCES.iterdir())


def outputs(place: layout.Layout) -> list[pathlib.Path]:
    """Return the programs that :func:`build_remotefs` writes."""
    return [place.remotefs / "server", place.remotefs / "client"]


def build_remotefs(place: layout.Layout) -> None:
    """Compile the server, which runs inside, and the client."""
    place.remotefs.mkdir(parents=True, exist_ok=True)
    server, client = outputs(place)
    compiler = ["gcc", "-O2", "-Wall", "-D_FILE_OFFSET_BITS=64", "-o"]
    run.run_command([*compiler, str(server), str(SOURCES / "server.c")])
    run.run_command(
        [
            *compiler,
            str(client),
            str(SOURCES / "client.c"),
            str(SOURCES / "connections.c"),
            "-lfuse3",
            "-lpthread",
        ]
    )


def mount(
    place: layout.Layout, log: pathlib.Path
) -> dict[str, processes.ProcessRecord]:
    """Start the clients; return their records, by name, at once.

    :func:`await_mount` waits for the mounts.
    """
    client = str(place.remotefs / "client")
    commands = {
        "remotefs": [str(place.sysfs), *SYS_PORTS.values()],
        "remotedev": ["--devices", str(place.dev), *DEV_PORTS.values()],
    }
    for path in (place.sysfs, place.dev):
        path.mkdir(exist_ok=True)
    return {
        name: processes.spawn([client, *argv], cwd=place.serve, log=log)
        for name, argv in commands.items()
    }


def await_mount(
    place: layout.Layout, records: Collection[processes.ProcessRecord]
) -> None:
    """Wait until the machine's files are seen; raise BootError if not."""
    deadline = time.monotonic() + 20
    mounted_files = (place.sysfs / "bus", place.dev / "null")
    while not all(path.exists() for path in mounted_files):
        alive = all(record.is_alive() for record in records)
        if not alive or time.monotonic() > deadline:
            msg = (
                "the machine's /sys or /dev could not be mounted: check "
                f"/dev/fuse and the logs in {place.serve}"
            )
            raise errors.BootError(msg)
        time.sleep(0.05)


def unmount(place: layout.Layout) -> None:
    """Take the mounts away; nothing when there is none.

    Lazily: a process may still be in there, and the far side may be dead.
    """
    for path in (place.sysfs, place.dev):
        while is_mounted(path):
            subprocess.run(  # noqa: S603
                ["umount", "-l", str(path)],  # noqa: S607
                check=True,
            )
        if path.exists():
            path.rmdir()


def is_mounted(path: pathlib.Path) -> bool:
    """Return whether something is mounted there, dead or alive."""
    mounts = pathlib.Path("/proc/self/mounts").read_text()
    return f" {path} " in mounts
