# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command, and two of its commands.

Other packages add commands by entry points of the group
``command_manager.HOST_GROUP``.
"""

import sys
from collections.abc import Sequence

from nova_accel.cli import application, command_manager, console

_DESCRIPTION = """\
Print and change the accelerators of a compute host, and their resource
providers. `nova-accel COMMAND --help` describes a command. `openstack accel`
has the commands about the cloud.
"""


class Inspect(application.DocumentCommand):
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
    commands = command_manager.CommandManager(
        command_manager.load_points(command_manager.HOST_GROUP)
    )
    return application.Application("nova-accel", _DESCRIPTION, commands).main(
        argv
    )


if __name__ == "__main__":
    sys.exit(console.nova_accel())
