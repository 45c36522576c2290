# SPDX-License-Identifier: Apache-2.0
"""Devices of the cloud, their states, their holders and their free room.

- ``fleet_state``: ``Fleet``, the devices of a query with their holders
- ``fleet_query``: ``FleetQuery``, which devices and servers are asked for
- ``fleet_reader``: ``read`` fetches a ``Fleet`` from Placement and Nova
- ``host_reports``: when each host last reported, and which are stale
- ``drain_notes``: reason, author and age of a drain
- ``device_rows``: a row for each device
- ``holder_rows``: rows of allocations, of projects and of hosts
"""
