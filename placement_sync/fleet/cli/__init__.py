# SPDX-License-Identifier: Apache-2.0
"""Commands about the fleet.

- ``commands``: declarations of the commands; imports no implementation
- ``profile_command``, ``server_command``: profiles and servers
- ``device_command``: drains and heals devices
- ``host_calls``: calls of nova-compute, and the notes on drained devices
- ``fleet_command``: lists of devices, allocations, hosts and projects
- ``report_command``: the report of all of them
- ``fleet_output``: columns and cells
"""
