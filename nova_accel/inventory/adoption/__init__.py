# SPDX-License-Identifier: Apache-2.0
"""Adoption of servers that have devices of Nova's own support.

A plan is a file below ``state_dir``. nova-compute carries it out when it
starts (``virt_hooks.operations.adoption``), and keeps it as the record of the
undo. No domain and no mdev is changed, so that no guest is paused.
"""
