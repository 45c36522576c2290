# SPDX-License-Identifier: Apache-2.0
"""Parts that drivers share: VFs, IOMMU groups, use by the host."""
