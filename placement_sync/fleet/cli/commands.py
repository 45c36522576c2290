# SPDX-License-Identifier: Apache-2.0
"""Commands of the cloud; see ``application.Command``."""

from nova_accel.cli import application


class RemovePlan(application.DocumentCommand):
    """Print what a removal of nova-accel from this host would do.

    These are the servers that have devices, with what happens to each under
    Nova's own driver; resource providers, classes, traits, extra specs of
    flavors, mdevs and files to delete; and what to change by hand. Nothing is
    changed. Example: nova-accel remove plan
    """

    action = "placement_sync.fleet.removal.remove_command:PLAN"


class RemoveApply(application.DocumentCommand):
    """Remove nova-accel from this host, before the switch to Nova's driver.

    Run it as root while nova-compute is stopped. It closes the resource
    providers of the host, deletes those that are not in use with their
    classes, traits and mdevs, and then the files of the state directory. It
    refuses while servers have devices: --move and --shelve, while nova-compute
    runs, remove them from the host, and --keep-servers lets them stay. It can
    be interrupted and repeated. The exit status is 1 if something is left.
    Example: nova-accel remove apply --move cold
    """

    action = "placement_sync.fleet.removal.remove_command:APPLY"


class ProfileList(application.ListCommand):
    """List the profiles that are available now in the whole cloud.

    They are read from Placement; --all lists every profile that a card of the
    cloud supports. Free is the maximum that the inventories allow: the
    partitions of a card may leave no room for one more, and the profiles of a
    card share its units. Most is the maximum of an empty card; [nova_accel]
    device_spec may allow fewer (max_slots, max_instances). Example: openstack
    accel profile list --model A40
    """

    action = "placement_sync.fleet.cli.profile_command:ACTION"


class ServerShow(application.ListCommand):
    """Print a server's accelerators.

    These are the accelerators of its flavor and attached ones. License and
    Guest driver are what NVML reports of the guest of a vGPU. Example:
    openstack accel server show vm-1
    """

    action = "placement_sync.fleet.cli.server_command:SHOW"


class ServerAttach(application.DocumentCommand):
    """Attach one more profile to a server.

    The server may be running or stopped. A failure is rolled back. Example:
    openstack accel server attach vm-1 --profile A40-8Q
    """

    action = "placement_sync.fleet.cli.server_command:ATTACH"


class ServerDetach(application.DocumentCommand):
    """Detach an attached profile from a server.

    A running guest must release the device, and may refuse. Example:
    openstack accel server detach vm-1 attached-1
    """

    action = "placement_sync.fleet.cli.server_command:DETACH"


class DeviceList(application.ListCommand):
    """List the devices of the cloud, their states and what still fits.

    They are read from Placement, reasons of drains over Nova's message bus. In
    use are the units that servers hold; Still fits is the largest profile that
    has room, and how many of it at most, or the reason of a drain. A state
    other than ok is missing (the host lost the device), unreadable, faulted or
    drained. Example: openstack accel device list --model A40 --free
    """

    action = "placement_sync.fleet.cli.fleet_command:DEVICE_LIST"


class DeviceShow(application.ShowCommand):
    """Print one device with its inventories, its traits and its holders.

    Example: openstack accel device show node1/0000:41:00.0
    """

    action = "placement_sync.fleet.cli.fleet_command:DEVICE_SHOW"


class DeviceSet(application.ListCommand):
    """Drain devices from here, or offer drained ones again.

    No new server gets a part of a drained device, and servers that hold it
    keep running. The nova-compute of the host stores the reason, over Nova's
    message bus. The exit status is 1 if a wait ends before all servers have
    released the devices. Example: openstack accel device set
    node1/0000:41:00.0 --drain --reason 'fan fails' --migrate live
    """

    action = "placement_sync.fleet.cli.device_command:SET"


class DeviceHeal(application.ListCommand):
    """Offer devices again that were set aside after a failure.

    Run it after their repair: nothing is repaired or scrubbed. The
    nova-compute of the host removes the fault, over Nova's message bus. The
    exit status is 1 if the host still shows a fault. Example: openstack accel
    device heal node1/0000:41:00.0
    """

    action = "placement_sync.fleet.cli.device_command:HEAL"


class AllocationList(application.ListCommand):
    """List the servers that hold accelerators.

    Each row is one server and one device. Profile is that of the server's
    flavor; units that the flavor does not request belong to attached profiles.
    Without the rights to read Placement, the accelerators in the flavors of
    your own servers are listed. The exit status is 1 if names and projects
    could not be read. Example: openstack accel allocation list --host node1
    """

    action = "placement_sync.fleet.cli.fleet_command:ALLOCATION_LIST"


class HostList(application.ListCommand):
    """List the hosts with accelerators.

    Example: openstack accel host list
    """

    action = "placement_sync.fleet.cli.fleet_command:HOST_LIST"


class UsageList(application.ListCommand):
    """Print how many units of accelerators each project holds.

    Units are those of the allocations in Placement. The exit status is 1 if
    projects could not be read. Example: openstack accel usage list
    """

    action = "placement_sync.fleet.cli.fleet_command:USAGE_LIST"


class Report(application.Command):
    """Print the whole fleet on one page.

    Print each card with its servers in their places, flavors and how many more
    of each fit, holders by project, fragmentation, problems, and what could
    not be read. The HTML file needs no network. Example: openstack accel
    report -o fleet.html
    """

    action = "placement_sync.fleet.cli.report_command:ACTION"
