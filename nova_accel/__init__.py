# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a compute host as Placement inventory for Nova.

Without I/O:

- ``model``: devices, profiles, slots, claims, actions; names of traits
- ``catalog``: facts about vendors' devices
- ``config``: options, ``device_spec`` lines
- ``geometry``: what fits on a card
- ``fpga``: bitstreams and regions
- ``claims``: from a server's slots to partitions
- ``inventory``: from devices to a provider tree

With I/O:

- ``host``: reads and changes of the host
- ``vendors``: one driver per technology
- ``discovery``: one reading of a host by all drivers
- ``cli``: the ``nova-accel`` command
- ``conformance``: checks of a vendor driver
"""
