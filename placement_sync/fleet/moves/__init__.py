# SPDX-License-Identifier: Apache-2.0
"""Moves of servers to cards of other hosts, and what they make room for.

Nothing here is guessed: cards whose partitions are not all known neither give
nor get a server, and a card counts only for what fits wherever the partitions
of its servers are.
"""
