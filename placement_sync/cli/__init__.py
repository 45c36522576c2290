# SPDX-License-Identifier: Apache-2.0
"""The ``placement-sync`` command, and three subcommands of ``nova-accel``.

- ``main``: ``placement-sync``; ``sync_command`` (without a subcommand),
  ``audit_command``, ``drain_command``, ``status_command``
- ``flavor_command``, ``profile_command``, ``server_command``: entry points
  of ``nova-accel``, each with ``add`` and ``run``
- ``common_options``: options of all commands, ``CommandOptions``
- ``outside_host``: a host outside of nova-compute
- ``progress``: messages while a command waits
"""
