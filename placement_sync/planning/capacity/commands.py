# SPDX-License-Identifier: Apache-2.0
"""Command about the room of a cloud; see ``application.Command``."""

import argparse

from nova_accel.cli import application


class PlanCapacity(application.ShowCommand):
    """Print how many servers would fit, where, and what blocks the rest.

    Servers are placed one after another on a snapshot, with the choice of
    nova-scheduler, so the numbers are what would really start. Hosts can be
    added before they are bought, be taken away for their maintenance, or be
    captured ones alone. Nothing is changed. The exit status is 0 if all
    servers have a place, 1 if one has none or a service does not respond, 2
    if the input can't be used. Example: openstack accel plan capacity
    --flavor gpu.small --count 10 --add gpu=A100-80,hosts=4 --without node3
    """

    action = "placement_sync.planning.capacity.capacity_command:ACTION"
    # Only a plan on a cloud needs credentials.
    auth_required = False

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Authenticate, unless captured hosts alone are planned on."""
        self.auth_required = not parsed_args.from_hosts
        if self.auth_required:
            self.app.prepare_to_run_command(self)
        return super().take_action(parsed_args)
