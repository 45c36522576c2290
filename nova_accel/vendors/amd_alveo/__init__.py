# SPDX-License-Identifier: Apache-2.0
"""AMD Alveo cards with the XRT kernel drivers (xclmgmt and xocl).

- ``alveo_driver`` (driver ``alveo``): U200 to V80, one region each;
- ``alveo_card``: a card, its PCI functions and its board.
"""
