# SPDX-License-Identifier: Apache-2.0
"""Commands of the doctor; see ``application.Command``."""

from nova_accel.cli import application


class Doctor(application.DocumentCommand):
    """Check whether this host can offer its accelerators.

    Print what keeps accelerators from servers, with the files that prove it
    and the lines that correct it. Nothing is changed, and nothing of Nova is
    needed; run it as root to read all files. The exit status is 0 if all is
    well, 1 with warnings, 2 with failures. Example: nova-accel doctor
    """

    action = "nova_accel.doctor.doctor_command:ACTION"


class Capture(application.Command):
    """Write an archive of the host for a bug report.

    The archive has the files and NVML answers that discovery and doctor read.
    Serial numbers, keys and passwords are left out. Run it as root. Example:
    nova-accel capture -o host.tar.gz
    """

    action = "nova_accel.doctor.capture_command:ACTION"


class DriverPlan(application.ListCommand):
    """List the Ansible roles that the cards of this host need.

    The reasons are failed checks of `nova-accel doctor`, and cards without a
    driver. Variables are those that an operator has to set, for software that
    only its vendor may distribute. Nothing is changed. Example: nova-accel
    driver plan
    """

    action = "nova_accel.doctor.ansible.driver_command:PLAN"


class DriverInstall(application.Command):
    """Install the drivers and settings that this host needs.

    Run the roles of `nova-accel driver plan` with Ansible, in their order, up
    to the first failure. The devices are drained before, and the command
    refuses while a server holds one of them. Repeat it after a reboot, until
    the plan is empty. Example: nova-accel driver install --vars drivers.yml
    """

    action = "nova_accel.doctor.ansible.driver_command:INSTALL"


class DriverRemove(application.Command):
    """Undo what `nova-accel driver install` has changed on this host.

    The files, packages and services of before are restored, from the
    manifests of the roles. Example: nova-accel driver remove --technology qat
    """

    action = "nova_accel.doctor.ansible.driver_command:REMOVE"


class DriverStatus(application.ListCommand):
    """List what the roles have changed on this host.

    Run it as root. Example: nova-accel driver status
    """

    action = "nova_accel.doctor.ansible.driver_command:STATUS"
