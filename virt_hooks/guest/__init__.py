# SPDX-License-Identifier: Apache-2.0
"""Guests: their XML, their host devices, and the connection to libvirt.

- ``connection``: ``HostdevUse``, ``LibvirtDomains``, ``WatchedDomains``,
  ``NodeDevices``; the only import of libvirt
- ``hostdev``: ``plan_elements``, the XML of claims
- ``guest_checks``: ``check``, whether a guest can have its devices
- ``hypervisor``: ``HypervisorReader``, libvirt and QEMU of the host
- ``guest_pci``: ``parse_guest``, ``plan_layout``: PCI slots of a guest
- ``nodedev``: names and XML of mdevs as node devices
- ``libvirt_guest``: ``add_claims``, ``read_use``: Nova's guest objects;
  ``GuestLayouts``, which a package replaces
- ``plug``: devices added to a domain or a running guest, or removed
"""
