# SPDX-License-Identifier: Apache-2.0
"""Claims, allocations, domains and partitions compared with each other."""
