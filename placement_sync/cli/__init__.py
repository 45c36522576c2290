# SPDX-License-Identifier: Apache-2.0
"""The ``placement-sync`` command.

- ``main``: ``placement-sync``
- ``commands``: declarations of the commands; imports no implementation
- ``sync_command`` (``run``), ``drain_command``,
  ``status_command``: implementations, each an ``application.Action``
- ``common_options``: options of all commands, ``CommandOptions``
- ``outside_host``: a host outside of nova-compute
- ``progress``: messages while a command waits
"""
