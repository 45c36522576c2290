# SPDX-License-Identifier: Apache-2.0
"""Domain XML for a guest of 64 MiB that answers hot unplug and no more."""

from __future__ import annotations

import os
from pathlib import Path

#: Hot plug on q35 needs a free root port per device.
ROOT_PORTS = 6
TEMPLATE = """\
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <cpu mode='custom'><model>qemu64</model></cpu>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{image}'/>
      <target dev='vda' bus='virtio'/>
      <readonly/>
      <boot order='1'/>
    </disk>
    <controller type='usb' model='none'/>
    <controller type='pci' index='0' model='pcie-root'/>
    {ports}
    <serial type='file'><source path='{serial}'/></serial>
    <memballoon model='none'/>
    {hostdevs}
  </devices>
</domain>
"""


def serial_of(name: str) -> Path:
    """Return the file the guest writes "U" to when it is up."""
    return Path("/run/fakehost") / f"{name}.serial"


def domain_xml(name: str, *hostdevs: str) -> str:
    """Return a domain with these ``<hostdev>`` elements.

    Only inside the namespace (FAKEHOST_GUEST names the guest's disk).
    """
    port = "<controller type='pci' model='pcie-root-port'/>"
    return TEMPLATE.format(
        name=name,
        image=os.environ["FAKEHOST_GUEST"],
        ports="\n    ".join([port] * ROOT_PORTS),
        serial=serial_of(name),
        hostdevs="\n    ".join(hostdevs),
    )


def mdev_hostdev(uuid: str) -> str:
    """Return the hostdev element of a mediated device."""
    return (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
        f"<source><address uuid='{uuid}'/></source></hostdev>"
    )


def pci_hostdev(address: str, *, managed: bool = True) -> str:
    """Return the hostdev element of a PCI function."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return (
        "<hostdev mode='subsystem' type='pci' "
        f"managed='{'yes' if managed else 'no'}'>"
        f"<source><address domain='0x{domain}' bus='0x{bus}' "
        f"slot='0x{slot}' function='0x{function}'/></source></hostdev>"
    )
