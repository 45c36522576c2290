# SPDX-License-Identifier: Apache-2.0
"""Changes of a host: actions are applied, read back and undone.

- ``action_executor``: ``Executor.apply_all(actions)``, the entry point.
- ``handlers``: ``Handler``, the functions of one class of actions:
  write, read-back, undo, hints.
- ``function_actions``: those of PCI functions; ``technologies`` has those
  that are registered (group ``nova_accel.actions``). A
  new action is a class in ``nova_accel.model.actions`` and an entry there.
- ``readback``: ``Readback``, the state that an action changes.
- ``reset_checks``: PCI functions before and after a reset.
- ``serials``: ``SerialNumbers`` of the devices that servers have.
- ``open_files``: processes that have an mdev open.
- ``privileged``: functions that run as root, with ``argument_checks``
  (validators), ``root_io`` (kernel files, vendors' tools) and
  ``bus_reset`` (VFIO's reset of a bus).
"""
