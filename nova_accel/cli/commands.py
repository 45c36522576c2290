# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command, and its commands about one host.

Other packages add commands by entry points (``application.COMMANDS_GROUP``).
"""

import sys
from collections.abc import Sequence

from nova_accel.cli import application, console

_DESCRIPTION = """\
Print the accelerators of a compute host, and print and change those of the
cloud. `nova-accel COMMAND --help` describes a command.
"""


class Inspect(application.Command):
    """Print devices, profiles and the provider tree.

    Print the devices of this host, their profiles and resource providers, and
    the reason for each device that is not offered. Nothing is changed; run it
    as root to read NVIDIA GPUs in MIG mode. Example: nova-accel inspect
    """

    action = "nova_accel.cli.inspect_command:ACTION"


class Heal(application.Command):
    """Offer devices again that were set aside after a failure.

    Run it after their repair: nothing is repaired or scrubbed. Without an
    address, list them with the reason. Example: nova-accel heal 0000:41:00.0
    """

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
