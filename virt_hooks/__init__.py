# SPDX-License-Identifier: Apache-2.0
"""Compute driver of Nova with accelerators; loaded by nova-compute.

- ``nova_driver``: AccelLibvirtDriver, the overrides of Nova's driver
- ``report``: the provider tree, in Nova's own report
- ``spawn``: partitions of servers: claimed, made, scrubbed, released
- ``operations``: moves, rebuild, suspend: one operation, one file
- ``attach``: hot attach and detach
- ``guest``: the guest's XML, and the connection to libvirt
- ``instance``: groups, slots and images of a ``nova.objects.Instance``
- ``shim``: the module that ``compute_driver = accel.AccelLibvirtDriver`` names
"""
