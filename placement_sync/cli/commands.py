# SPDX-License-Identifier: Apache-2.0
"""Commands of one host that talk to Placement; see ``application.Command``."""

from nova_accel.cli import application


class Sync(application.DocumentCommand):
    """Correct this host's resource providers in Placement.

    Compare the accelerators of this host with their resource providers in
    Placement, and correct the providers. Without --once or --dry-run this runs
    as a daemon: it makes a pass at an interval, and soon after a kernel event.
    SIGTERM stops it after a running pass, SIGHUP requests a pass. Each change
    is a line on standard error. Only resource providers of nova-accel are
    changed, and resources that servers use are never withdrawn. nova-compute
    may run on the same host. Example: placement-sync run --dry-run
    """

    action = "placement_sync.cli.sync_command:ACTION"


class DrainDevices(application.DocumentCommand):
    """Offer devices to no new server, or list the drained devices.

    No new server gets a part of a drained device, and servers that use it keep
    running. Devices stay drained over restarts, until undrain. Example:
    nova-accel drain 0000:5e:00.0 --reason 'ECC errors' --wait-empty
    """

    action = "placement_sync.cli.drain_command:DRAIN"


class UndrainDevices(application.DocumentCommand):
    """Offer drained devices to new servers again.

    Example: nova-accel undrain 0000:5e:00.0
    """

    action = "placement_sync.cli.drain_command:UNDRAIN"


class ShowStatus(application.DocumentCommand):
    """Print the results and the age of the last passes.

    Print the status of each writer of this host, nova-compute and
    placement-sync, from the state directory; Placement is not read. The exit
    status is 1 if a status is stale (no successful pass for three intervals),
    or if there is none. Example: nova-accel status -f json
    """

    action = "placement_sync.cli.status_command:ACTION"
