# SPDX-License-Identifier: Apache-2.0
"""Nova's libvirt driver with accelerators; loaded by nova-compute.

``nova_driver.AccelLibvirtDriver`` is the compute driver; its module says
where a spawn begins, where an mdev is made, and how it is undone. From the
top down:

- ``shim``: module that ``compute_driver = accel.AccelLibvirtDriver`` loads
- ``hooks``: objects that the driver's overrides call, constructed in order
- ``bypass``: stock behaviour for servers without accelerators
- ``attach``: hot attach and detach of a profile
- ``operations``: moves, rebuild and suspend; one operation, one file
- ``report``: provider tree, in Nova's report and in the background pass
- ``spawn``: partitions of servers: claimed, made, scrubbed, released
- ``instance``: groups, slots and images of a ``nova.objects.Instance``
- ``guest``: XML of the guest, and the connection to libvirt
- ``error_guards``: errors that are logged, or become Nova's errors
- ``nova_private``: private names of Nova, in one place
"""
