# SPDX-License-Identifier: Apache-2.0
"""Ports of an Intel FPGA card, behind its PF or behind VFs."""

import dataclasses
from collections.abc import Iterator, Mapping

from nova_accel.config import policy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
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


def check_change(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> str:
    """Return why the number of a card's VFs can't be changed, or ""."""
    manager = card.manager
    if manager.driver != dfl.IN_KERNEL or not card.layout.node:
        return (
            f"it is bound to {manager.driver or 'no driver'}, and only"
            f" {dfl.IN_KERNEL} can do it"
        )
    if _has_unknown_ports(card):
        return "its ports are unknown"
    if requested > manager.total_vfs:
        return f"it has {manager.total_vfs}; lower num_vfs"
    ports = read_ports(card, host)
    if not _has_portless_vfs(card, ports) and requested > len(ports.numbers):
        return f"it has {len(ports.numbers)} ports; lower num_vfs"
    return _check_vf_use(manager, host)


def explain_change(
    card: fpga_card.DflCard, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return how each region gets a function of its own, or why it can't."""
    count = _choose_count(card, read_ports(card, host))
    if count is None:
        total = card.manager.total_vfs or "none"
        return f"its static part has {total}: flash one with more"
    if count == rule.num_vfs:
        return "num_vfs changes that when nova-compute starts"
    if obstacle := check_change(card, count, host):
        return f"that can't be changed: {obstacle}"
    line = vf_card.build_line(card.manager, rule, count)
    return f"{line} changes that when nova-compute starts"


def _choose_count(card: fpga_card.DflCard, ports: CardPorts) -> int | None:
    """Return the number of VFs with which each region has a function.

    None for a card without such a number: the total is set when the static
    part is made (Intel's PCIe IP, "Initial VFs and Total VFs Registers").
    """
    total = card.manager.total_vfs
    if _has_portless_vfs(card, ports):
        return total or None
    if total >= len(ports.numbers):
        return len(ports.numbers)
    return 0 if len(ports.numbers) == 1 else None


def _check_vf_use(
    manager: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return why a VF may be in use, or ""."""
    if manager.num_vfs > len(manager.virtual_functions):
        return "not all of its virtual functions are to be found"
    for address in manager.virtual_functions:
        function = host.function(str(address))
        if function is None or function.driver not in (
            None,
            *fpga_card.DRIVERS,
        ):
            return f"{address} may be in use by a guest, or by the host"
    return ""


def _has_unknown_ports(card: fpga_card.DflCard) -> bool:
    """Return whether the ports of the PF are not all known."""
    layout = card.layout
    return (
        layout.node is None
        or layout.interfaces is None
        or any(port.number is None for port in layout.ports)
    )


def _has_portless_vfs(card: fpga_card.DflCard, ports: CardPorts) -> bool:
    """Return whether VFs need no released port, as on N6000 cards."""
    return not ports.pf_ports and bool(card.layout.ports)


def plan_change(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> tuple[actions.Action, ...]:
    """Return the actions that release ports and enable as many VFs.

    The kernel accepts only the number of released ports, and only while
    the number is 0 (drivers/fpga/dfl.c, dfl_fpga_cdev_config_ports_vf).
    """
    count = card.manager.num_vfs
    changes = _plan_ports(card, requested, read_ports(card, host))
    if requested == count and (
        requested or not changes or _has_unknown_ports(card)
    ):
        return ()
    enable = actions.SetVfCount(function=card.address, count=requested)
    disable = actions.SetVfCount(function=card.address, count=0, before=count)
    return (
        *([disable] if count else []),
        *changes,
        *([enable] if requested else ()),
        *(_plan_rebind(card) if changes and not requested else ()),
    )


def _plan_rebind(card: fpga_card.DflCard) -> Iterator[actions.BindDriver]:
    """Yield the actions that make host drivers bind to returned ports.

    They do not by themselves (observed with Linux 6.1).
    """
    driver = card.driver
    yield actions.BindDriver(function=card.address, driver="", before=driver)
    yield actions.BindDriver(function=card.address, driver=driver)


def _plan_ports(
    card: fpga_card.DflCard, requested: int, ports: CardPorts
) -> tuple[actions.SetPort, ...]:
    """Return the actions that release ports, or take them back.

    As many ports as requested VFs are released, in the order of numbers.
    """
    if _has_portless_vfs(card, ports):
        return ()
    released = tuple(ports.region_vfs)
    to_release = tuple(ports.pf_ports)[: max(requested - len(released), 0)]
    return (
        *(
            actions.SetPort(card=card.address, number=n, is_released=True)
            for n in to_release
        ),
        *(
            actions.SetPort(card=card.address, number=n, is_released=False)
            for n in released[requested:]
        ),
    )
