# SPDX-License-Identifier: Apache-2.0
"""Command line.

- ``application``: the programs and their commands, built with cliff.
- ``command_manager``: commands by name, from the entry points of all packages.
- ``commands``: the ``nova-accel`` command, and its commands about one host:
  ``inspect_command``, ``heal_command``.
- ``host_source``: a host, a directory or an archive that a command reads.
- ``inspect_output``: a host and its provider tree as text and JSON.
- ``assigned_functions``: functions that ``[pci]`` of Nova names.
- ``console``: entry points of the console scripts.
"""
