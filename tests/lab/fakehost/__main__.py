# SPDX-License-Identifier: Apache-2.0
"""Run a command where /sys is simulated and libvirt manages it.

    python -m tests.lab.fakehost [--spec FILE] [--keep] -- COMMAND...

The command sees the simulated /sys, a libvirtd of its own at
qemu:///system, and a QEMU whose vfio-pci needs no VFIO. Namespaces (mount,
network, IPC, UTS, PID) keep it away from this machine's own: its libvirtd,
/run, /etc/mdevctl.d, networks and /sys. Exit status: the command's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab.fakehost import standins
from tests.lab.fakehost.mount import REPOSITORY, missing
from tests.lab.fakehost.spec import HostSpec
from tests.lab.fakehost.under_libvirt.demo_host import SPEC

PROGRAMS = (
    "ip",
    "libvirtd",
    "mdevctl",
    "mount",
    "setpriv",
    "unshare",
    "virsh",
)
#: Exit status for "could not even start", as of sh for "not found".
CANNOT = 125


def lab_directory() -> Path:
    """Return where the lab keeps its state."""
    default = REPOSITORY / ".lab"
    return Path(os.environ.get("NOVA_ACCEL_LAB", default)) / "fakehost"


def missing_for_libvirt() -> str:
    """Return why there can be no full namespace here, "" if there can."""
    reason = missing()
    if reason:
        return reason
    for name in (*PROGRAMS, standins.EMULATOR):
        if shutil.which(name) is None:
            return f"the fake host needs {name} (packages: bindep.txt)"
    return ""


def main() -> int:
    """Enter the namespaces and run the command there."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.fakehost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--spec", type=Path, help="HostSpec as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    reason = missing_for_libvirt()
    if reason:
        print(f"fakehost: {reason}", file=sys.stderr)
        return CANNOT
    try:
        spec = SPEC
        if options.spec:
            spec = HostSpec.from_json(options.spec.read_text())
        standins.build(lab_directory() / "standins")
    except (OSError, ValueError, standins.StandInError) as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return CANNOT
    return _enter(spec, options.command, keep=options.keep)


def _enter(spec: HostSpec, command: list[str], *, keep: bool) -> int:
    lab = lab_directory()
    state = Path(tempfile.mkdtemp(prefix="run-", dir=lab))
    (state / "spec.json").write_text(spec.to_json())
    vfio = Path("/dev/vfio")
    made = not vfio.exists()
    vfio.mkdir(exist_ok=True)  # a mount point; /dev is this machine's
    unshare = [
        # nothing of it outlives this process
        *("setpriv", "--pdeathsig", "KILL"),
        "unshare",
        *("--mount", "--net", "--ipc", "--uts", "--pid", "--fork"),
        *("--mount-proc", "--kill-child"),
        *(sys.executable, "-m", "tests.lab.fakehost.under_libvirt.namespace"),
        *(str(lab), str(state), *command),
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(unshare, env=environment)  # noqa: S603
    try:
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        if made:
            vfio.rmdir()
    if keep or status:
        last_run = lab / "last"
        shutil.rmtree(last_run, ignore_errors=True)
        state.rename(last_run)
        print(f"fakehost: logs are in {last_run}", file=sys.stderr)
    else:
        shutil.rmtree(state)
    return status


if __name__ == "__main__":
    sys.exit(main())
