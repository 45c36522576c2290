# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel explain``; see ``application.Command``."""

from nova_accel.cli import application


class Explain(application.ListCommand):
    """Print for each card whether a flavor would get it, and why not.

    Send nova-scheduler's query for a server of the flavor to Placement,
    apply AcceleratorFilter to the candidates, and print the cards of each
    host with the reason. Nothing is changed. The exit status is 0 if a host
    can serve the flavor; 1 if no host can, or a service does not respond; 2
    if the input can't be used.
    """

    action = "filters.explain.explain_command:ACTION"
