# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a compute host as Placement inventory for Nova.

Pure, without I/O:

- ``errors``: exception tree; each exception has a hint for the operator
- ``model``: devices, profiles, slots, claims, actions, names of traits
- ``catalog``: PCI ids, vGPU types and mdev types of the vendors; formats of
  bitstreams
- ``config``: options of ``[nova_accel]`` and its ``device_spec`` lines
- ``geometry``: vGPU and GPU instance placement, device topology
- ``claims``: slots and request groups of a server -> claims on partitions
- ``inventory``: devices and claims -> resource provider tree

With I/O:

- ``host``: reads and changes the host
- ``vendors``: one driver per technology
- ``discovery``: reads a host with all drivers
- ``cli``: the ``nova-accel`` command

Packages of their own, which the core never imports:

- ``doctor``: checks of a host, and Ansible roles that correct it
- ``conformance``: checks of a vendor driver
"""
