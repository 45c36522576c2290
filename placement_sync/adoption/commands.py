# SPDX-License-Identifier: Apache-2.0
"""Commands of an adoption; see ``application.Command``."""

from nova_accel.cli import application


class AdoptPlan(application.DocumentCommand):
    """Plan the adoption of this host's servers of Nova or Cyborg devices.

    Read this host, libvirt, Placement, Nova and Cyborg, print for each server
    its mdevs or functions with card, profile and slot, and each reason why the
    host can't be adopted. The plan is stored in the state directory;
    nothing else is changed. Run it as root on the host. The exit status is 1
    if there are such reasons. Example: nova-accel adopt plan
    """

    action = "placement_sync.adoption.adopt_command:PLAN"


class AdoptApply(application.DocumentCommand):
    """Let the next start of nova-compute adopt the planned servers.

    The host must be disabled in Nova, and nothing may have changed since the
    plan. Afterwards set compute_driver of nova-accel, remove the cards from
    [devices] enabled_mdev_types or [pci] device_spec, or stop cyborg-agent,
    and restart nova-compute. No guest is paused. Example: nova-accel adopt
    apply
    """

    action = "placement_sync.adoption.adopt_command:APPLY"


class AdoptUndo(application.DocumentCommand):
    """Let the next start of nova-compute hand the servers back to Nova.

    It is refused while servers have what Nova's own driver can't express;
    they are printed. Stop a placement-sync daemon of the host, write [pci]
    device_spec as before the adoption if it was of PCI functions, and restart
    nova-compute with the driver of nova-accel once more. The exit status is 1
    if it is refused. Example: nova-accel adopt undo
    """

    action = "placement_sync.adoption.adopt_command:UNDO"


class AdoptStatus(application.DocumentCommand):
    """Print the state of the adoption, and the next step.

    Example: nova-accel adopt status
    """

    action = "placement_sync.adoption.adopt_command:STATUS"
