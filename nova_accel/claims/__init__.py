# SPDX-License-Identifier: Apache-2.0
"""Claims of servers on partitions, from slots and request groups. No I/O."""
