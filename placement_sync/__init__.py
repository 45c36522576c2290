# SPDX-License-Identifier: Apache-2.0
"""Provider trees in Placement, and the commands that work with them.

- ``sync``: one pass: difference to Placement, calls, refusals
- ``daemon``: passes at an interval, with status file and metrics
- ``audit``: claims, allocations, domains and partitions compared
- ``flavors``: profiles of a cloud, extra specs of flavors
- ``cli``: the ``placement-sync`` command, subcommands of ``nova-accel``
- ``client``: REST and RPC clients of Placement and Nova
"""
