# SPDX-License-Identifier: Apache-2.0
"""Regions of Intel FPGA cards, and the PCI functions of their ports.

The port of a region is behind the PF, or it was released and is behind a
VF; the guest gets the function that the port is behind. On N6000 cards all
ports are behind VFs, and the card does not show which VF has which port.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.catalog.fpga import regions
from nova_accel.config import policy, remedy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group, reset_policy, vf_card
from nova_accel.vendors.intel_dfl import fpga_card

_ENABLE = "set num_vfs in a device_spec line for the card"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortRegion:
    """A region, and the PCI functions that go to the guest with it.

    ``functions`` are their addresses, none if there is no function to
    assign. ``port`` is the port behind the first of them, None if no host
    driver shows it. ``refusal`` says why the region is not offered, empty
    if it is. ``dependents`` are as in ``model.Region``.
    """

    number: int
    functions: tuple[pci.PciAddress, ...] = ()
    port: dfl.DflPort | None = None
    refusal: str = ""
    dependents: tuple[str, ...] = ()


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


def list_regions(
    card: fpga_card.DflCard,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    groups: dict[int, str],
) -> Iterator[PortRegion]:
    """Yield a card's regions by number.

    :param groups: region addresses by IOMMU group, of the regions that are
        offered; the groups of this card are added.
    """
    card_ports = read_ports(card, host)
    assigned = {vf for vfs in card_ports.region_vfs.values() for vf in vfs}
    for number in card_ports.numbers:
        vfs = card_ports.region_vfs.get(number, ())
        if card.is_hidden or number in card_ports.pf_ports:
            functions = _get_pf_functions(card)
            port = card_ports.pf_ports.get(number)
        else:
            functions = vfs
            port = _read_vf_port(vfs, number, host)
        yield PortRegion(
            number=number,
            functions=functions,
            port=port,
            refusal=_check_card(card, card_ports, number, functions)
            or _check_functions(functions, host, rules)
            or _check_shared_group(
                names.region_address(card.address, number),
                functions,
                host,
                groups,
            ),
            dependents=_list_dependents(
                card, host, {*functions} | (assigned - {*vfs})
            ),
        )


def _get_pf_functions(card: fpga_card.DflCard) -> tuple[pci.PciAddress, ...]:
    """Return the PF, and the functions of its slot in its IOMMU group."""
    number = card.manager.iommu_group
    return (
        card.manager.address,
        *(
            other.address
            for other in card.others
            if number is not None and other.iommu_group == number
        ),
    )


def _read_vf_port(
    vfs: tuple[pci.PciAddress, ...], number: int, host: host_reader.HostReader
) -> dfl.DflPort | None:
    """Return the port behind the first VF, None if no driver shows it."""
    if not vfs:
        return None
    port = dfl.read(host.files, str(vfs[0])).port(number)
    if port is not None:
        return port
    function = host.function(str(vfs[0]))
    if function is None or function.driver not in fpga_card.DRIVERS:
        return None
    return dfl.DflPort(number=number, reason=f"is not shown by {vfs[0]}")


def _check_card(
    card: fpga_card.DflCard,
    card_ports: CardPorts,
    number: int,
    functions: tuple[pci.PciAddress, ...],
) -> str:
    """Return why the state of the card prevents a region's use, or ""."""
    if not functions:
        return _explain_no_function(card, card_ports)
    manager = card.manager
    if manager.address not in functions:
        return ""
    if manager.num_vfs:
        return (
            f"it is behind {manager.address}, of which"
            f" {manager.num_vfs} virtual functions are enabled; {_ENABLE},"
            " as many as it has regions, or 0"
        )
    if any(port.number is None for port in card.layout.ports):
        return "the other ports behind its function are unknown"
    others = ", ".join(str(n) for n in card_ports.pf_ports if n != number)
    if others:
        return (
            f"it is behind {manager.address} together with region {others},"
            f" and a function goes to one guest; {_ENABLE}"
        )
    return ""


def _explain_no_function(
    card: fpga_card.DflCard, card_ports: CardPorts
) -> str:
    """Return why a region has no function to assign."""
    if card.layout.node is None:
        return (
            f"the host's driver {card.driver} does not show the card's"
            " management (FME); see the kernel's log, or load it again"
        )
    if card_ports.unknown_vfs or any(
        port.number is None for port in card.layout.ports
    ):
        return "the function that its port is behind is unknown"
    if not card.manager.total_vfs:
        return (
            "it is behind virtual functions, and there are none to enable;"
            " switch SR-IOV on in the firmware"
        )
    return f"it is behind virtual functions, and none is enabled; {_ENABLE}"


def _check_functions(
    addresses: tuple[pci.PciAddress, ...],
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
) -> str:
    """Return why functions can't be assigned to a guest, or ""."""
    for address in addresses:
        function = host.function(str(address))
        if function is None:
            return f"{address} can't be read"
        reason = (
            _check_function(function, rules)
            or iommu_group.check_group(function, addresses, host)
            or reset_policy.check_region(function, host)
        )
        if reason:
            return reason
    return ""


def _check_shared_group(
    region: str,
    addresses: tuple[pci.PciAddress, ...],
    host: host_reader.HostReader,
    groups: dict[int, str],
) -> str:
    """Return that another region is in the same IOMMU group, or ""."""
    functions = (host.function(str(address)) for address in addresses)
    for number in {f.iommu_group for f in functions if f is not None}:
        if number is None:
            continue
        first = groups.setdefault(number, region)
        if first != region:
            card = names.card_address(region)
            return f"it {iommu_group.explain_shared(card, first)}"
    return ""


def _check_function(
    function: pci.PciFunction, rules: policy.DeviceRules
) -> str:
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if rule.use is policy.DeviceUse.OFF:
        return f"device_spec says use off for {address}"
    if _is_idle(function):
        return ""
    return (
        f"the host's driver {function.driver} holds {address};"
        f" {remedy.BindFunction(function=address, driver='vfio-pci')}"
    )


def _is_idle(function: pci.PciFunction) -> bool:
    """Return whether no driver uses the function's accelerator."""
    return (
        function.driver in (None, *fpga_card.DRIVERS) or function.is_vfio_bound
    )


def _list_dependents(
    card: fpga_card.DflCard,
    host: host_reader.HostReader,
    excluded: Iterable[pci.PciAddress],
) -> tuple[str, ...]:
    """Return the functions that fail when a region is reprogrammed.

    :param excluded: the functions that go to the guest with the region,
        and the VFs of other regions.
    """
    addresses = {f.address for f in card.others if not _is_idle(f)}
    addresses |= {*card.virtual_functions, *card.other_vfs}
    return tuple(map(str, sorted(addresses - {*excluded})))


def describe(
    card: fpga_card.DflCard, port_region: PortRegion, rule: policy.Rule
) -> model.Device:
    """Return a region as a device."""
    manager = card.manager
    interface = _get_interface(card, port_region.number)
    region = model.Region(
        card=card.address,
        number=port_region.number,
        function=port_region.port.function if port_region.port else None,
        interfaces=(interface,) if interface else (),
        is_programmable=bool(interface)
        and can_read_function(card, port_region),
        tool="fpgaconf" if card.driver == dfl.OLDER else "",
        driver=card.driver,
        dependents=port_region.dependents,
        blank=rule.blank,
    )
    count = 0 if port_region.refusal else 1
    slots = tuple(map(str, port_region.functions))
    return model.Device(
        address=names.region_address(card.address, port_region.number),
        plugin="dfl",
        technology="fpga",
        vendor=names.vendor_name(manager.vendor),
        model=card.model,
        resource_class=names.FPGA_CLASS,
        counters={names.FPGA_CLASS: count} if count else {},
        slots=slots[:1],
        vendor_id=manager.vendor,
        product_id=manager.product,
        driver=manager.driver,
        numa_node=manager.numa_node,
        profiles=(
            model.Profile(
                name="region",
                trait=names.REGION_TRAIT,
                charges={names.FPGA_CLASS: 1},
                available=count,
            ),
        ),
        traits=regions.traits(region) | frozenset(card.identity),
        members=slots[1:],
        parent=card.address,
        region=region,
    )


def _get_interface(card: fpga_card.DflCard, number: int) -> str:
    interfaces = card.layout.interfaces or ()
    return interfaces[number] if number < len(interfaces) else ""


def has_unknown_interface(card: fpga_card.DflCard, number: int) -> bool:
    """Return whether a region is programmable and its interface unknown."""
    interfaces = card.layout.interfaces or ()
    return number < len(interfaces) and not interfaces[number]


def can_read_function(
    card: fpga_card.DflCard, port_region: PortRegion
) -> bool:
    """Return whether the kernel can show the function of a region.

    If it can't, a loaded bitstream can't be verified.
    """
    port = port_region.port or card.layout.port(port_region.number)
    return port is None or port.is_shown
