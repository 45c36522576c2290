# SPDX-License-Identifier: Apache-2.0
"""Live migration; registered, so nothing imports it by name.

- ``live_migration``: ``LiveMigration``, called by the overrides
- ``migration_partitions``: partitions of a server that moves
- ``live_migration_checks``: what both hosts must have
- ``live_migration_wire``: format between the hosts
"""
