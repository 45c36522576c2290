# SPDX-License-Identifier: Apache-2.0
"""Vendor drivers: policy, changes and damage of hosts, and their plans.

The golden reports of ``test_inspect.py`` prove how they describe the hosts of
``tests/hosts``.
"""
