# SPDX-License-Identifier: Apache-2.0
"""Commands of the cloud: ``openstack accel`` and their like of ``nova-accel``.

- ``cli``: commands about devices, hosts, holders, profiles and servers
- ``explain``: commands about flavors, with a simulation of the scheduler
- ``report``: the whole fleet on one page
- ``devices``: devices, their states, their holders and their free room
- ``flavors``: profiles of a cloud, and flavors that request them
- ``compute_rpc``: ``ComputeRpc`` calls nova-compute; needs Nova installed
- ``projects``: names of projects
- ``removal``: removes this library from a host
- ``cloud_checks``: checks of ``nova-accel doctor --cloud``

The core does not import this package: ``setup.cfg`` registers its commands.
It may import ``filters``, to judge as nova-scheduler does.
"""
