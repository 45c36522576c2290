# SPDX-License-Identifier: Apache-2.0
"""Commands that simulate nova-scheduler; see ``application.Command``."""

from nova_accel.cli import application


class Explain(application.ListCommand):
    """Print for each card whether a flavor would get it, and why not.

    Send nova-scheduler's query for a server of the flavor to Placement,
    apply AcceleratorFilter to the candidates, and print the cards of each
    host with the reason. Nothing is changed. The exit status is 0 if a host
    can serve the flavor; 1 if no host can, or a service does not respond; 2
    if the input can't be used. For a server, also one in ERROR, its zone, its
    project and its scheduler hints exclude hosts, and its fault is printed.
    Example: openstack accel explain --flavor gpu.small
    """

    action = "placement_sync.fleet.explain.explain_command:ACTION"


class FlavorCreate(application.DocumentCommand):
    """Create a flavor that requests accelerators.

    The options for the request are those of flavor set. If the request is
    refused, no flavor is created. Example: openstack accel flavor create
    gpu.small --vcpus 4 --ram 8192 --disk 20 --profile A40-8Q
    """

    action = "placement_sync.fleet.explain.flavor_command:CREATE"


class FlavorSet(application.DocumentCommand):
    """Set the accelerators that a flavor requests.

    The extra specs replace all accelerators of the flavor; extra specs for
    other purposes stay. A warning is printed if no host can serve the flavor
    now; openstack accel explain has the reason for each card. A flavor whose
    guests can't start on any host is refused. Without --profile and --class
    only the given settings change. Example: openstack accel flavor set
    gpu.small --profile A40-8Q --numa-policy preferred
    """

    action = "placement_sync.fleet.explain.flavor_command:SET"


class FlavorImport(application.ListCommand):
    """Create or change the flavors of a file.

    The file is JSON of `openstack flavor list --long`, of flavor show, or of
    profile list: then each profile gets a flavor. The accelerators of a flavor
    are replaced by those of the file; its other extra specs stay. Flavors
    without accelerators are skipped. All flavors are checked before the first
    is written; a second import changes nothing. Example: openstack accel
    flavor import flavors.json --dry-run
    """

    action = "placement_sync.fleet.explain.import_command:ACTION"


class FlavorConvert(application.ListCommand):
    """Convert flavors for Nova's own vGPUs or PCI aliases to profiles.

    Each line of the file is one of the option native_flavors, which may
    replace pci_passthrough:alias, too. A flavor to which a line applies keeps
    its name, its id and its other extra specs. Servers keep the flavor that
    they have. Example: openstack accel flavor convert lines.json --dry-run
    """

    action = "placement_sync.fleet.explain.convert_command:ACTION"


class FlavorShow(application.ShowCommand):
    """Print a flavor's accelerators, and whether a host can serve it now.

    It prints also for how many servers there is room now. Example: openstack
    accel flavor show gpu.small
    """

    action = "placement_sync.fleet.explain.flavor_command:SHOW"


class CapacityShow(application.ShowCommand):
    """Print how many more servers of a flavor there is room for.

    The numbers are what the inventories allow; the partitions of a card may
    allow fewer. Blocked by are the devices that no server of the flavor can
    get now, by reason. The exit status is 0 if one more fits, 1 if none does
    or a service does not respond, 2 if the input can't be used. Example:
    openstack accel capacity show --flavor gpu.small
    """

    action = "placement_sync.fleet.explain.capacity_command:ACTION"
