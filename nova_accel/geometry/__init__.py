# SPDX-License-Identifier: Apache-2.0
"""Placement of partitions on a device, and distances of devices. No I/O.

- ``device_capacity``: remaining partitions of each profile, in all layouts
- ``time_slicing``: the same in equal-size and mixed-size mode
- ``mig``: the same in MIG mode
- ``spans``: arithmetic of spans, as bit masks
- ``occupancy``: traits with the places of a card's partitions
- ``card_state``: layout and partitions of a card, as Placement has them
- ``vgpu_geometry``, ``vgpu_feasibility``: vGPU types that fit on such a card
- ``provider_room``: how many more of a request group fit on a provider
- ``usable_share``: how much of a host's cards the usual requests could use
- ``topology``: PCIe root ports, NVLinks, required locality
"""
