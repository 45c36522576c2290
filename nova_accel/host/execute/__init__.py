# SPDX-License-Identifier: Apache-2.0
"""Changes of a host: actions are applied, read back and undone.

- ``action_executor``: ``Executor.apply_all(actions)``, the entry point.
- ``readback``: ``Readback``, the state that an action changes.
- ``undo_actions``: actions that undo an action, from the state before it.
- ``hints``: hints for the operator by action and errno.
- ``program_fpga``: ``FpgaProgrammer`` loads a bitstream.
- ``reset_checks``: PCI functions before and after a reset.
- ``serials``: ``SerialNumbers`` of the devices that servers have.
- ``open_files``: processes that have an mdev open.
- ``privileged``: functions that run as root, with ``argument_checks``
  (validators), ``root_io`` (kernel files, vendors' tools) and
  ``bus_reset`` (VFIO's reset of a bus).
"""
