# SPDX-License-Identifier: Apache-2.0
"""Partitions of servers: claimed, made, scrubbed, released.

- ``lifecycle``: ``Lifecycle``: ``ensure``, ``restore``, ``release``,
  ``clean_up``; the only class that the driver calls
- ``setup``: ``read_node``: builds it from nova.conf
- ``host_access``: ``HostAccess``: its readers and stores
- ``spawn_plan``: claims of a spawn, and preconditions
- ``claim_store``: ``ClaimStore``: claims by consumer; ``NodeClaims``: those
  of the node, as they are published
- ``device_locks``: ``DeviceLocks``: one change at a time per card
- ``release``, ``scrubbing``: partitions removed, functions scrubbed
- ``function_notes``: ``FunctionNotes``: which server had a function last
- ``orphan_cleanup``, ``ownership``: partitions that no server has
- ``programs``: ``Programs``: bitstreams of a server; FPGAs register theirs
- ``card_modes``: ``CardModeSetter``: VF counts and modes of cards
"""
