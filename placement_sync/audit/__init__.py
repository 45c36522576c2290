# SPDX-License-Identifier: Apache-2.0
"""Audit: compare claims, allocations, domains, partitions and providers.

- ``collector``: ``StateCollector`` reads all sources
- ``collected_state``: ``CollectedState``, the values; ``StateIndex``
- ``checks``: ``compare`` runs all checks; pure, as are ``device_checks``
  and ``placement_checks``
- ``findings``: ``AuditReport`` of ``AuditFinding`` and ``Gap``
- ``heal``: ``Healer`` repairs findings that are proved to be safe
- ``node_amounts``: amounts of a server on its compute node
- ``commands``, ``audit_command``: the command ``nova-accel audit``
- ``metering``: pollsters of Ceilometer, from the status file

The core does not import this package: ``setup.cfg`` registers it.
"""
