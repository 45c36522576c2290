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


class Capture(application.Command):
    """Write an archive of the host for a bug report.

    The archive has the files and NVML answers that discovery and doctor read.
    Serial numbers, keys and passwords are left out. Run it as root. Example:
    nova-accel capture -o host.tar.gz
    """

    action = "nova_accel.cli.capture_command:ACTION"


class Doctor(application.Command):
    """Check whether this host can offer its accelerators.

    Print what keeps accelerators from servers, with the files that prove it
    and the lines that correct it. Nothing is changed, and nothing of Nova is
    needed; run it as root to read all files. The exit status is 0 if all is
    well, 1 with warnings, 2 with failures. Example: nova-accel doctor
    """

    action = "nova_accel.cli.doctor_command:ACTION"


class Heal(application.Command):
    """Offer devices again that were set aside after a failure.

    Run it after their repair: nothing is repaired or scrubbed. Without an
    address, list them with the reason. Example: nova-accel heal 0000:41:00.0
    """

    action = "nova_accel.cli.heal_command:ACTION"


class DriverPlan(application.ListCommand):
    """List the Ansible roles that the cards of this host need.

    The reasons are failed checks of `nova-accel doctor`, and cards without a
    driver. Variables are those that an operator has to set, for software that
    only its vendor may distribute. Nothing is changed. Example: nova-accel
    driver plan
    """

    action = "nova_accel.cli.driver.driver_command:PLAN"


class DriverInstall(application.Command):
    """Install the drivers and settings that this host needs.

    Run the roles of `nova-accel driver plan` with Ansible, in their order, up
    to the first failure. The devices are drained before, and the command
    refuses while a server holds one of them. Repeat it after a reboot, until
    the plan is empty. Example: nova-accel driver install --vars drivers.yml
    """

    action = "nova_accel.cli.driver.driver_command:INSTALL"


class DriverRemove(application.Command):
    """Undo what `nova-accel driver install` has changed on this host.

    The files, packages and services of before are restored, from the
    manifests of the roles. Example: nova-accel driver remove --technology qat
    """

    action = "nova_accel.cli.driver.driver_command:REMOVE"


class DriverStatus(application.ListCommand):
    """List what the roles have changed on this host.

    Run it as root. Example: nova-accel driver status
    """

    action = "nova_accel.cli.driver.driver_command:STATUS"


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
