# SPDX-License-Identifier: Apache-2.0
"""Commands about moves of servers; see ``application.Command``."""

from nova_accel.cli import application


class PlanDefragment(application.DocumentCommand):
    """Plan the fewest moves of servers that make room for a profile.

    Servers move to other hosts, running ones by live migration; whether a
    host's driver can do that, its nova-compute says before each migration. A
    server is moved only if Nova's choice of the card is certain, and it stays
    if it could lose something: a NUMA topology, attached profiles, the policy
    of its server group. Devices and hosts that take no servers have no part.
    The exit status is 1 if there is no plan. Nothing is changed. Example:
    openstack accel plan defragment --profile A40-24Q --count 2 -o plan.json
    """

    action = "placement_sync.planning.defragmentation.plan_command:ACTION"


class PlanApply(application.DocumentCommand):
    """Carry out a plan of moves, one server after another.

    Each move is checked right before it: the server is where the plan has it,
    and Nova would give it the planned card. It ends with an error as soon as
    the cloud differs from the plan. Run it again to go on: moves that are
    done are recognised, and those under way are watched. --dry-run checks
    only. The exit status is 1 if less fits than planned. Example: openstack
    accel plan apply plan.json
    """

    action = "placement_sync.planning.defragmentation.apply_command:ACTION"
