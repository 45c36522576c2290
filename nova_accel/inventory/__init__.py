# SPDX-License-Identifier: Apache-2.0
"""Inventory of a host as a resource provider tree. No I/O.

- ``tree_builder``: devices, policy and claims -> provider tree
- ``health``: faults by error counters, Xids and power state
- ``conditions``: fault and drain marks of devices
- ``node_counts``: traits that count the accelerators of a node
- ``unoffered``: accelerators that are not offered, with the reasons
"""
