# SPDX-License-Identifier: Apache-2.0
"""Command of the audit; see ``application.Command``."""

from nova_accel.cli import application


class Audit(application.DocumentCommand):
    """Compare allocations, claims, guests and devices.

    Compare the data of Placement, Nova's API, nova-compute, libvirt and the
    kernel about the accelerators of this host, and print the contradictions. A
    source that can't be read is printed with the comparisons that were
    skipped. Run it as root on the host. The exit status is 0 if there are no
    findings, or all were healed; 1 if findings remain, or Placement can't be
    read; 2 if the input can't be used. Example: nova-accel audit --heal
    """

    action = "placement_sync.audit.audit_command:ACTION"
