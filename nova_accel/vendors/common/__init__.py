# SPDX-License-Identifier: Apache-2.0
"""Base classes, checks and descriptions that several vendor drivers share.

- ``driver_base``: base classes of drivers, with defaults;
- ``iommu_group``: can a guest get a function's IOMMU group;
- ``reset_policy``: can functions be reset between guests, or policy waives
  it;
- ``host_use``: does the host use a device itself;
- ``mdev_parents``: the mdev parents of a physical device;
- ``vf_card``: a PF whose VFs go to guests unchanged, as one device, and
  the plan to change the number of VFs.
"""
