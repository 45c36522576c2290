# SPDX-License-Identifier: Apache-2.0
"""Intel FPGA cards, which the kernel shows as Device Feature Lists.

- ``dfl_driver`` (driver ``dfl``): Arria 10 PAC, D5005, N3000, N6000;
- ``fpga_card``: a card, its PCI functions and its board;
- ``port_regions``: the regions of a card, their ports and functions.
"""
