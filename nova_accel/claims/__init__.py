# SPDX-License-Identifier: Apache-2.0
"""Claims of servers on partitions, from slots and request groups. No I/O.

- ``claim_plan``: claims for the slots that Nova assigned to a server
- ``matching``: assignment of request groups to devices
- ``attach_candidates``: devices for a hot-attached profile, best first
- ``migration``: checks of a live migration, order of PCI address changes
- ``reported``: claims of the partitions that NVML or a driver reports
- ``card_reset``: how the functions of one guest can be reset
- ``scrub``: plan for scrubbing functions between two servers
"""
