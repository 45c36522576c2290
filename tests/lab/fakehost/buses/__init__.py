# SPDX-License-Identifier: Apache-2.0
"""The buses of the simulated kernel: PCI, mediated devices, IOMMU groups."""
