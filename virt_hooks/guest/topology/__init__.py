# SPDX-License-Identifier: Apache-2.0
"""PCIe topology of the host in the guest; nothing imports it by name.

The NUMA node of a card is that of its expander (``_PXM``). QEMU has no other
place for it: an SMBIOS slot (``-smbios type=9``, QEMU 9.0; libvirt has no
element) has no field for a node, and ``acpi-index`` makes a ``_DSM`` on bus 0
only, not below an expander (tried with QEMU 7.2 and 10.0).
"""
