# SPDX-License-Identifier: Apache-2.0
"""Moves of servers to cards of other hosts, and what they make room for.

- ``card_contents``: the partitions that a card may have, and what fits
- ``movable_servers``: which servers can move at all, and on what terms
- ``move_targets``: the cards that Nova would choose for a server
- ``move_search``: the fewest moves that reach a goal

Nothing here is guessed: cards whose partitions are not all known neither give
nor get a server, and a card counts only for what fits wherever the partitions
of its servers are.
"""
