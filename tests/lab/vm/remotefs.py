# SPDX-License-Identifier: Apache-2.0
"""The served machine's /sys, mounted here with its errno values.

SFTP (sshfs) would do but for its errors: it has no ENOSPC, no EBUSY. The
sources of the two small programs are in the directory remotefs.
"""

import pathlib
import subprocess
import time

from tests.lab.vm import errors, layout, processes, run

#: serial ports between the two programs: name inside -> socket in the
#: machine's run directory. As many requests run at once.
PORTS = {f"lab.sys.{number}": f"sys{number}.sock" for number in range(4)}

SOURCES = pathlib.Path(__file__).resolve().parent / "remotefs"


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
            "-lfuse3",
            "-lpthread",
        ]
    )


def mount(place: layout.Layout, log: pathlib.Path) -> processes.ProcessRecord:
    """Start the client; return its record at once.

    :func:`await_mount` waits for the mount.
    """
    place.sysfs.mkdir(exist_ok=True)
    client = str(place.remotefs / "client")
    argv = [client, str(place.sysfs), *PORTS.values()]
    return processes.spawn(argv, cwd=place.serve, log=log)


def await_mount(place: layout.Layout, record: processes.ProcessRecord) -> None:
    """Wait until the machine's /sys is seen; raise BootError if not."""
    deadline = time.monotonic() + 20
    while not (place.sysfs / "bus").exists():
        if not record.is_alive() or time.monotonic() > deadline:
            msg = (
                "the machine's /sys could not be mounted: check /dev/fuse "
                f"and the logs in {place.serve}"
            )
            raise errors.BootError(msg)
        time.sleep(0.05)


def unmount(place: layout.Layout) -> None:
    """Take the mount away; nothing when there is none.

    Lazily: a process may still be in there, and the far side may be dead.
    """
    while is_mounted(place.sysfs):
        subprocess.run(  # noqa: S603
            ["umount", "-l", str(place.sysfs)],  # noqa: S607
            check=True,
        )
    if place.sysfs.exists():
        place.sysfs.rmdir()


def is_mounted(path: pathlib.Path) -> bool:
    """Return whether something is mounted there, dead or alive."""
    mounts = pathlib.Path("/proc/self/mounts").read_text()
    return f" {path} " in mounts
