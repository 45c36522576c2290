# SPDX-License-Identifier: Apache-2.0
"""Ports of an Intel FPGA card, behind its PF or behind VFs."""

import dataclasses
from collections.abc import Mapping

from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci
from nova_accel.vendors.common import vf_card
from nova_accel.vendors.intel_dfl import fpga_card


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardPorts:
    """The regions of a card by number, each with its port or its VFs.

    ``pf_ports`` are the ports behind the PF. ``region_vfs`` are the VFs of
    all other regions; empty if no VFs are enabled. ``unknown_vfs`` show a
    port that can't be read, so that they belong to no region.
    """

    pf_ports: Mapping[int, dfl.DflPort]
    region_vfs: Mapping[int, tuple[pci.PciAddress, ...]]
    unknown_vfs: frozenset[pci.PciAddress] = frozenset()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted({*self.pf_ports, *self.region_vfs}))


# VFs by the number of their region, while they are assigned.
_RegionVfs = dict[int, list[pci.PciAddress]]


def read_ports(
    card: fpga_card.DflCard, host: host_reader.HostReader
) -> CardPorts:
    """Return the regions of a card, each with its port or its VFs.

    A VF belongs to the region whose port it shows. The other VFs belong to
    the regions without one, in the order of both. All VFs of a card with
    one region belong to that region. A VF whose port can't be read belongs
    to none: another server may have the region that it would be taken for.
    """
    layouts = {
        vf: dfl.read(host.files, str(vf)) for vf in card.virtual_functions
    }
    unknown_vfs = frozenset(vf for vf in layouts if layouts[vf].reasons)
    ports_by_vf = {
        vf: [p.number for p in layout.ports if p.number is not None]
        for vf, layout in layouts.items()
        if vf not in unknown_vfs
    }
    numbers = sorted(_list_numbers(card).union(*ports_by_vf.values()))
    pf_ports = {
        number: port
        for number in numbers
        if (port := card.layout.port(number)) is not None and port.is_shown
    }
    region_vfs: _RegionVfs = {n: [] for n in numbers if n not in pf_ports}
    unassigned = _assign_by_ports(region_vfs, ports_by_vf)
    if card.manager.num_vfs > len(ports_by_vf):
        links = vf_card.read_vf_numbers(card.manager, host)
        unassigned = _assign_by_links(region_vfs, unassigned, links)
    else:
        unassigned = _assign_in_order(region_vfs, unassigned)
    if len(region_vfs) == 1:
        next(iter(region_vfs.values())).extend(unassigned)
    return CardPorts(
        pf_ports=pf_ports,
        region_vfs={n: tuple(vfs) for n, vfs in region_vfs.items()},
        unknown_vfs=unknown_vfs,
    )


def _assign_by_ports(
    region_vfs: _RegionVfs,
    ports_by_vf: Mapping[pci.PciAddress, list[int]],
) -> list[pci.PciAddress]:
    """Assign VFs to the regions whose port they show; return the rest."""
    rest = []
    for vf, ports in ports_by_vf.items():
        free = (n for n in ports if n in region_vfs and not region_vfs[n])
        number = next(free, None)
        if number is None:
            rest.append(vf)
        else:
            region_vfs[number].append(vf)
    return rest


def _assign_by_links(
    region_vfs: _RegionVfs,
    unassigned: list[pci.PciAddress],
    links: Mapping[pci.PciAddress, int],
) -> list[pci.PciAddress]:
    """Assign VFs by the numbers of their links; return the rest.

    Needed if a VF is missing or unknown: the order of the others would be
    wrong.
    """
    regions_in_order = list(region_vfs.values())
    rest = []
    for vf in unassigned:
        number = links.get(vf, len(regions_in_order))
        if number < len(regions_in_order) and not regions_in_order[number]:
            regions_in_order[number].append(vf)
        else:
            rest.append(vf)
    return rest


def _assign_in_order(
    region_vfs: _RegionVfs, unassigned: list[pci.PciAddress]
) -> list[pci.PciAddress]:
    """Assign one VF to each region without one; return the rest."""
    empty = [vfs for vfs in region_vfs.values() if not vfs]
    for vfs, vf in zip(empty, unassigned, strict=False):
        vfs.append(vf)
    return unassigned[len(empty) :]


def _list_numbers(card: fpga_card.DflCard) -> set[int]:
    """Return the numbers of the regions that the PF shows."""
    layout = card.layout
    shown_ports = {p.number for p in layout.ports if p.is_shown}
    numbers = {n for n in shown_ports if n is not None}
    if card.model in fpga_card.FIXED:
        return numbers
    if layout.node is None or layout.interfaces is None:
        # A card that can't be read has at least one region.
        numbers |= {p.number for p in layout.ports if p.number is not None}
        return numbers or {0}
    numbers |= set(range(len(layout.interfaces)))
    has_vfs_only = not layout.ports and card.virtual_functions
    return numbers or ({0} if None in shown_ports or has_vfs_only else set())
