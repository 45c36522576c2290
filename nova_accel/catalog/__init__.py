# SPDX-License-Identifier: Apache-2.0
"""Catalog of vendors' devices: PCI ids, vGPU types, mdev types."""
