# SPDX-License-Identifier: Apache-2.0
"""Removal of this library from a host: ``nova-accel remove``.

- ``remove_command``: commands ``remove plan`` and ``remove apply``
- ``leaving_host``: reads what a host has of this library
- ``host_removal``: closes, empties and deletes it, step by step
- ``removal_plan``: holders, effects, and the text of a plan; pure
- ``removal_files``: the record of a removal, and the state directory
- ``assigned_slots``: slots of servers in Nova's database
"""
