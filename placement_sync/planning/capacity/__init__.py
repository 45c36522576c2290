# SPDX-License-Identifier: Apache-2.0
"""Plans of capacity: how many servers fit on which hosts, and what blocks.

``openstack accel plan capacity`` places servers one after another on a
snapshot, with the choice of nova-scheduler.
"""
