# SPDX-License-Identifier: Apache-2.0
"""Command line.

- ``commands``: the ``nova-accel`` command; ``main()``, and ``open_host()``
  and ``open_source()`` for a host, a directory or an archive.
- ``inspect_output``: a host and its provider tree as text and JSON.
- ``console``: entry points of the console scripts.
"""
