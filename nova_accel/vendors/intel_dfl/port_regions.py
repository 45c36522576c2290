# SPDX-License-Identifier: Apache-2.0
"""Regions of Intel FPGA cards, and the PCI functions of their ports.

The port of a region is behind the PF, or it was released and is behind a
VF; the guest gets the function that the port is behind. On N6000 cards all
ports are behind VFs, and the card does not show which VF has which port.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

from nova_accel import model
from nova_accel.catalog.fpga import regions
from nova_accel.config import policy, remedy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group, reset_policy
from nova_accel.vendors.intel_dfl import card_ports, fpga_card


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
    ports = card_ports.read_ports(card, host)
    manager = card.manager
    rule = rules.rule(card.address, manager.vendor, manager.product)
    explain_change = functools.partial(
        card_ports.explain_change, card, rule, host
    )
    assigned = {vf for vfs in ports.region_vfs.values() for vf in vfs}
    for number in ports.numbers:
        vfs = ports.region_vfs.get(number, ())
        if card.is_hidden or number in ports.pf_ports:
            functions = _get_pf_functions(card)
            port = ports.pf_ports.get(number)
        else:
            functions = vfs
            port = _read_vf_port(vfs, number, host)
        yield PortRegion(
            number=number,
            functions=functions,
            port=port,
            refusal=_check_card(card, ports, number, functions, explain_change)
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
    ports: card_ports.CardPorts,
    number: int,
    functions: tuple[pci.PciAddress, ...],
    explain_change: Callable[[], str],
) -> str:
    """Return why the state of the card prevents a region's use, or ""."""
    if not functions:
        return _explain_no_function(card, ports, explain_change)
    manager = card.manager
    if manager.address not in functions:
        return ""
    if manager.num_vfs:
        return (
            f"it is behind {manager.address}, of which {manager.num_vfs}"
            f" virtual functions are enabled; {explain_change()}"
        )
    if any(port.number is None for port in card.layout.ports):
        return "the other ports behind its function are unknown"
    others = ", ".join(str(n) for n in ports.pf_ports if n != number)
    if others:
        return (
            f"it is behind {manager.address} together with region {others},"
            f" and a function goes to one guest; {explain_change()}"
        )
    return ""


def _explain_no_function(
    card: fpga_card.DflCard,
    ports: card_ports.CardPorts,
    explain_change: Callable[[], str],
) -> str:
    """Return why a region has no function to assign."""
    if card.layout.node is None:
        return (
            f"the host's driver {card.driver} does not show the card's"
            " management (FME); see the kernel's log, or load it again"
        )
    if ports.unknown_vfs or any(
        port.number is None for port in card.layout.ports
    ):
        return "the function that its port is behind is unknown"
    return (
        "it is behind virtual functions, and none is enabled;"
        f" {explain_change()}"
    )


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
