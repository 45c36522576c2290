# SPDX-License-Identifier: Apache-2.0
"""PCIe topology of the host in the guest; nothing imports it by name.

- ``host_tree``: tree of a host, restricted to the devices of a guest
- ``picture``: ``mirror`` and ``parse``: PCI controllers of a guest, and the
  place of each device
- ``guest_buses``: bus numbers that the guest will see, from its XML
- ``clusters``: devices that share a root complex or a switch, compared before
  a live migration
- ``nvlinks``: NVLinks between the devices of a guest
- ``root_ports``: number of root ports of bus 0
- ``spare_ports``: ``SparePorts``: empty ports for attached devices
- ``address_bits``: address space of guests, for the memory of functions
- ``distances``: distances between the NUMA nodes of a guest
- ``port_windows``: room that root ports have for the memory of functions
- ``device_reader``: places of claimed devices in the host's tree
- ``guest_topology``: ``TopologyLayouts``, which nova-compute loads by the
  entry point group ``nova_accel.guest_layouts``

The NUMA node of a card is that of its expander (``_PXM``). QEMU has no other
place for it: an SMBIOS slot (``-smbios type=9``, QEMU 9.0; libvirt has no
element) has no field for a node, and ``acpi-index`` makes a ``_DSM`` on bus 0
only, not below an expander (tried with QEMU 7.2 and 10.0).
"""
