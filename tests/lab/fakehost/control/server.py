# SPDX-License-Identifier: Apache-2.0
"""The process behind a simulated host: mount, control socket, end.

Started by mount.py and namespace.py, never by hand. It reads the spec's
JSON from its standard input up to the first newline, prints ``ready`` when
the mount answers, and ends when its standard input does, so that no mount
outlives the process that asked for it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.lab.fakehost.control.commands import Control, ControlServer
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.spec import HostSpec
from tests.lab.fakehost.sysfs.devnodes import DevNodes
from tests.lab.fakehost.sysfs.filesystem import SysfsOperations, serve


def _end_with_input(
    operations: SysfsOperations, mountpoint: str, control: Path
) -> None:
    sys.stdin.buffer.read()
    operations.stop()
    command = ["umount", "--lazy", mountpoint]
    subprocess.run(command, check=False)  # noqa: S603 - no input of users
    control.unlink(missing_ok=True)
    os._exit(0)


def main() -> None:
    """Serve one host until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mountpoint")
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--vfio-dir", type=Path, required=True)
    parser.add_argument("--netlink", action="store_true")
    options = parser.parse_args()
    spec = HostSpec.from_json(sys.stdin.buffer.readline().decode())

    def boot() -> Kernel:
        return spec.boot(options.vfio_dir, netlink=options.netlink)

    operations = SysfsOperations(
        boot(),
        lambda: print("ready", flush=True),
        DevNodes(Path(options.mountpoint), options.vfio_dir.parent),
    )
    control = Control(operations, boot, spec.plug)
    server = ControlServer(options.control, control)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(
        target=_end_with_input,
        args=(operations, options.mountpoint, options.control),
        daemon=True,
    ).start()
    serve(operations, options.mountpoint)


if __name__ == "__main__":
    main()
