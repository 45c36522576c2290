# SPDX-License-Identifier: Apache-2.0
"""From slots and groups to claims on partitions. No I/O."""
