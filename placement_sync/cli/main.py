# SPDX-License-Identifier: Apache-2.0
"""The ``placement-sync`` command; its commands are entry points."""

import sys
from collections.abc import Sequence

from nova_accel.cli import application, console

_DESCRIPTION = """\
Correct the accelerators of this host in Placement, drain devices, and compare
what Placement, Nova, libvirt and the kernel know.

examples:
  placement-sync run            make passes as a daemon
  placement-sync run --dry-run  print the calls that a pass would make
  placement-sync run --once     make one pass
  placement-sync status         print results of the last passes
  placement-sync drain 0000:5e:00.0 --reason "ECC errors" --wait-empty

exit status: 0 success; 1 calls were left undone, or a status is stale; 2 the
input can't be used, and one line on standard error has the correction.
"""
_COMMANDS_GROUP = "placement_sync.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    program = application.Application(
        "placement-sync",
        _DESCRIPTION,
        application.CommandManager(_COMMANDS_GROUP),
    )
    return program.main(argv)


if __name__ == "__main__":
    sys.exit(console.placement_sync())
