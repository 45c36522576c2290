# SPDX-License-Identifier: Apache-2.0
"""Operations of Nova with overrides; one operation, one file.

- ``cold_migration``: ``ColdMigrationDriver``: cold migration and resize
- ``live_migration``: ``LiveMigrationDriver``, with ``migration_partitions``
  (partitions of servers that leave or arrive, versions and drivers),
  ``live_migration_checks`` and ``live_migration_wire`` (format between the
  hosts)
- ``suspend``: ``SuspendDriver``: suspend, resume, cold snapshots
- ``rebuild``: ``RebuiltServers``: allocations of failed rebuilds
- ``bypass``: ``accelerators_only``: stock behaviour for all other servers
- ``config_checks``: ``check``: configuration at the start of the service
- ``nova_database``: ``StartupServers``: servers of this host in Nova

The drivers are bases of ``AccelLibvirtDriver``.
"""
