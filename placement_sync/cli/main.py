# SPDX-License-Identifier: Apache-2.0
"""The ``placement-sync`` command: ``nova-accel sync`` as a periodic task."""

import sys
from collections.abc import Sequence

from nova_accel.cli import application, command_manager, console

_DESCRIPTION = """\
Correct the accelerators of this host in Placement.

examples:
  placement-sync run            make passes as a daemon
  placement-sync run --dry-run  print the calls that a pass would make
  placement-sync run --once     make one pass

exit status: 0 success; 1 calls were left undone; 2 the input can't be used,
and one line on standard error has the correction.
"""
_RUN = "sync"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    points = command_manager.load_points(command_manager.HOST_GROUP)
    commands = command_manager.CommandManager({"run": points[_RUN]})
    return application.Application(
        "placement-sync", _DESCRIPTION, commands
    ).main(argv)


if __name__ == "__main__":
    sys.exit(console.placement_sync())
