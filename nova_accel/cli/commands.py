# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command, and its commands about one host.

Other packages add commands by entry points (``application.COMMANDS_GROUP``).
"""

import sys
from collections.abc import Sequence

from nova_accel.cli import application, console

_DESCRIPTION = """\
Accelerators of a compute host, as they would be reported to Placement, and
those of the whole cloud.
"""


class Inspect(application.Command):
    """Print devices, profiles and the provider tree."""

    action = "nova_accel.cli.inspect_command:ACTION"


class Capture(application.Command):
    """Pack what discovery reads into an archive for a bug report."""

    action = "nova_accel.cli.capture_command:ACTION"


class Heal(application.Command):
    """Offer devices again that were set aside after a failure."""

    action = "nova_accel.cli.heal_command:ACTION"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    program = application.Application(
        "nova-accel",
        _DESCRIPTION,
        application.CommandManager(application.COMMANDS_GROUP),
    )
    return program.main(argv)


if __name__ == "__main__":
    sys.exit(console.nova_accel())
