# SPDX-License-Identifier: Apache-2.0
"""Address bits of guests, from the BARs of their devices.

Nova has ``hw:maxphysaddr_mode`` and ``hw:maxphysaddr_bits``, which also
choose hosts. A guest of a flavor and an image without them gets the bits
that its devices need. Devices that migrate live have no BARs of their host,
or small ones: their guests have QEMU's default, and may go to any host.
"""

import dataclasses
import logging
from typing import Any

from nova.virt.libvirt import config as vconfig

from nova_accel import errors
from nova_accel.catalog import features
from nova_accel.config import logs
from nova_accel.geometry import address_space
from virt_hooks.guest import guest_pci, hypervisor

LOG = logging.getLogger(__name__)


def ensure_room(
    config: Any,
    uuid: str,
    host: Any,
    reader: hypervisor.HypervisorReader,
    demand: address_space.Demand,
    spare_bits: int = 0,
) -> None:
    """Give a guest the address bits that its BARs need, or check its own.

    :param config: a ``LibvirtConfigGuest``.
    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param spare_bits: with which its empty ports have room, too.
    :raises ClaimError: its own bits are too few, or those of the host.
    """
    if not demand.total:
        return
    text = config.to_xml()
    space = address_space.parse_space(text)
    needed = space.choose_bits(demand)
    enough = max(needed, spare_bits)
    if enough <= address_space.DEFAULT_BITS:
        return
    host_bits = read_host_bits(host)
    bits = host_bits if space.is_host else space.bits
    _check_bits(uuid, space, demand, host_bits)
    guest = guest_pci.parse_guest(text)
    if bits:
        obstacle = f"hw:maxphysaddr_bits is {bits}" if bits < needed else ""
    elif "q35" not in guest.machine and not guest.is_conventional:
        return
    else:
        obstacle = _find_obstacle(config.cpu, host_bits, reader.read(guest))
    if obstacle and needed > address_space.DEFAULT_BITS:
        logs.warning(
            LOG,
            "the firmware of server %s may have no room for the BARs of its"
            " accelerators, which need %d address bits: %s",
            uuid,
            needed,
            obstacle,
        )
    if obstacle or bits:
        return
    size = vconfig.LibvirtConfigGuestCPUMaxPhysAddr()
    size.mode, size.bits = "emulate", min(enough, host_bits)
    config.cpu.maxphysaddr = size
    LOG.info(
        "server %s has %d address bits for the BARs of its accelerators, %s",
        uuid,
        size.bits,
        address_space.format_size(demand.total),
    )


def _check_bits(
    uuid: str,
    space: address_space.AddressSpace,
    demand: address_space.Demand,
    host_bits: int,
) -> None:
    """Check the address bits of a flavor and of a host; 0 are unknown.

    :raises ClaimError: they are too few.
    """
    least = space.find_least_bits(demand)
    sizes = (
        f"its memory of {address_space.format_size(space.memory)} and the"
        f" BARs of its devices, {address_space.format_size(demand.total)},"
        f" need {least} address bits or more"
        f" with {'UEFI' if space.has_uefi else 'BIOS'}"
    )
    if space.bits and space.bits < least and not space.is_host:
        reason = (
            f"{sizes}, and hw:maxphysaddr_bits is {space.bits}: set it to"
            f" {space.choose_bits(demand)}"
        )
        raise errors.ClaimError(uuid, reason, public=reason)
    if host_bits and host_bits < least:
        raise errors.ClaimError(
            uuid,
            f"{sizes}, and the processor of this host has {host_bits}",
            public=f"{sizes}, and the processor of its host has fewer",
        )


def read_space(text: str, host: Any) -> address_space.AddressSpace:
    """Return the address space of a domain, with bits that it has at least.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    """
    space = address_space.parse_space(text)
    bits = read_host_bits(host) if space.is_host else space.bits
    return dataclasses.replace(space, bits=bits or address_space.DEFAULT_BITS)


def read_host_bits(host: Any) -> int:
    """Return the address bits of a host's processor, 0 if unknown."""
    size = host.get_capabilities().host.cpu.maxphysaddr
    return size.bits or 0 if size else 0


def _find_obstacle(
    cpu: Any, host_bits: int, programs: hypervisor.Hypervisor
) -> str:
    """Return why a guest can't get other address bits, empty if it can."""
    if reason := programs.explain_old("their number", features.ADDRESS_SIZE):
        return reason
    if not host_bits:
        return "libvirt names none of this host's processor"
    if cpu is None or not (cpu.mode or cpu.model):
        return "cpu_mode of Nova's section [libvirt] is none"
    return ""
