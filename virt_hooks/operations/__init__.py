# SPDX-License-Identifier: Apache-2.0
"""Operations of Nova; one operation, one file.

Their methods take the arguments of Nova's method, after ``stock``, which
runs it.

- ``server_partitions``: ``ServerPartitions``: partitions of one server,
  made, retained and released; all operations use it
- ``spawn_server``: ``Spawn``: spawn, and the configuration of the guest
- ``reboot``: ``Reboot``: hard reboot and unrescue
- ``cold_migration``: ``ColdMigration``: cold migration and resize
- ``live_moves``: ``LiveMoves``, the interface of live migration
- ``suspend``: ``Suspend``: suspend, resume, cold snapshots
- ``rebuild``: ``RebuiltServers``: allocations of failed rebuilds
- ``host_passes``: ``HostPasses``: start of the service, periodic passes
- ``config_checks``: ``check``: configuration at the start of the service
- ``nova_database``: ``StartupServers``: servers of this host in Nova
"""
