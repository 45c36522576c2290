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
) -> None:
    """Give a guest the address bits that its BARs need, or check its own.

    :param config: a ``LibvirtConfigGuest``.
    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :raises ClaimError: its own bits are too few, or those of the host.
    """
    if not demand.total:
        return
    text = config.to_xml()
    space = address_space.parse_space(text)
    least, enough = space.find_least_bits(demand), space.choose_bits(demand)
    if enough <= address_space.DEFAULT_BITS:
        return
    host_bits = _read_host_bits(host)
    bits = host_bits if space.is_host else space.bits
    sizes = (
        f"its memory of {address_space.format_size(space.memory)} and the"
        f" BARs of its devices, {address_space.format_size(demand.total)},"
        f" need {least} address bits or more"
        f" with {'UEFI' if space.has_uefi else 'BIOS'}"
    )
    if bits and bits < least and not space.is_host:
        reason = (
            f"{sizes}, and hw:maxphysaddr_bits is {bits}: set it to {enough}"
        )
        raise errors.ClaimError(uuid, reason, public=reason)
    if host_bits and host_bits < least:
        raise errors.ClaimError(
            uuid,
            f"{sizes}, and the processor of this host has {host_bits}",
            public=f"{sizes}, and the processor of its host has fewer",
        )
    if bits:
        if bits < enough:
            logs.warning(
                LOG,
                "the firmware of server %s may have no room for the BARs of"
                " its accelerators: hw:maxphysaddr_bits is %d, set it to %d",
                uuid,
                bits,
                enough,
            )
        return
    guest = guest_pci.parse_guest(text)
    if "q35" not in guest.machine and not guest.is_conventional:
        return
    obstacle = _find_obstacle(config.cpu, host_bits, reader.read(guest))
    if obstacle:
        logs.warning(
            LOG,
            "the firmware of server %s may have no room for the BARs of its"
            " accelerators, which need %d address bits: %s",
            uuid,
            enough,
            obstacle,
        )
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


def read_space(text: str, host: Any) -> address_space.AddressSpace:
    """Return the address space of a domain, with bits that it has at least.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    """
    space = address_space.parse_space(text)
    bits = _read_host_bits(host) if space.is_host else space.bits
    return dataclasses.replace(space, bits=bits or address_space.DEFAULT_BITS)


def _read_host_bits(host: Any) -> int:
    """Return the address bits of a host's processor, 0 if unknown."""
    size = host.get_capabilities().host.cpu.maxphysaddr
    return size.bits or 0 if size else 0


def _find_obstacle(
    cpu: Any, host_bits: int, programs: hypervisor.Hypervisor
) -> str:
    """Return why a guest can't get other address bits, empty if it can."""
    program, version = programs.find_old_program(features.ADDRESS_SIZE)
    if program:
        minimum = features.join(features.ADDRESS_SIZE.minimum(program))
        return (
            f"{program} has to be {minimum}, and is {features.join(version)}"
        )
    if not host_bits:
        return "libvirt names none of this host's processor"
    if cpu is None or not (cpu.mode or cpu.model):
        return "cpu_mode of Nova's section [libvirt] is none"
    return ""
