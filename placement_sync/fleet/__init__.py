# SPDX-License-Identifier: Apache-2.0
"""Commands of the cloud: ``openstack accel`` and their like of ``nova-accel``.

The core does not import this package: ``setup.cfg`` registers its commands.
It may import ``filters``, to judge as nova-scheduler does.
"""
