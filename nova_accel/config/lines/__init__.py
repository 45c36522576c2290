# SPDX-License-Identifier: Apache-2.0
"""Options of nova.conf with one JSON object a line.

- ``json_line``: the object of any such line.
- ``device_spec``, ``native_flavors``: those of this library.
- ``nova_pci_spec``: ``[pci] device_spec`` of Nova itself.
"""
