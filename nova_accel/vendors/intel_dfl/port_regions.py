# SPDX-License-Identifier: Apache-2.0
"""Regions of Intel's FPGA cards: their ports and holders.

A port is behind the PF, and then the whole PF goes to the guest, or it was
released, and then a VF does. On N6000 cards the functions are behind VFs
in any case; which of them belongs to what, the card does not tell.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.config import policy
from nova_accel.fpga import regions
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group, vf_card
from nova_accel.vendors.intel_dfl import fpga_card

_MEND = "switch on ACS in the firmware, or put the card in a slot of its own"
_ENABLE = "set num_vfs in a device_spec line for the card"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortRegion:
    """A region, and the PCI functions that go to the guest with it.

    ``functions`` are their addresses, none where nothing can be given.
    ``port`` is what is behind the first of them, None where no driver of
    the host shows it. ``refusal`` tells why the region is not offered,
    empty if it is; ``dependents`` are as in ``model.Region``.
    """

    number: int
    functions: tuple[pci.PciAddress, ...] = ()
    port: dfl.DflPort | None = None
    refusal: str = ""
    dependents: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardPorts:
    """Which regions a card has, and where each one's port is.

    ``in_pf`` has the ports whose function is behind the PF; ``behind``
    the VFs of every other region, none where none are enabled.
    """

    in_pf: Mapping[int, dfl.DflPort]
    behind: Mapping[int, tuple[pci.PciAddress, ...]]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the regions' numbers."""
        return tuple(sorted({*self.in_pf, *self.behind}))


def ports(card: fpga_card.DflCard, host: host_reader.HostReader) -> CardPorts:
    """Return where a card's ports are.

    VFs that show a port have that one; the others are taken in their
    order for the other ports in theirs. All VFs of a card with one region
    belong to it.
    """
    layout = card.layout
    shown = {
        vf: {
            port.number: None
            for port in dfl.read(host.files, str(vf)).ports
            if port.number is not None
        }
        for vf in card.virtual_functions
    }
    numbers = _numbers(card) | {n for found in shown.values() for n in found}
    in_pf = {}
    for number in sorted(numbers):
        port = layout.port(number)
        if port is not None and port.is_shown:
            in_pf[number] = port
    behind: dict[int, list[pci.PciAddress]] = {
        number: [] for number in sorted(numbers) if number not in in_pf
    }
    rest = []
    for vf, told in shown.items():
        mine = next((n for n in told if n in behind and not behind[n]), None)
        if mine is None:
            rest.append(vf)
        else:
            behind[mine].append(vf)
    if card.manager.num_vfs > len(shown):
        _by_links(behind, rest, vf_card.numbers(card.manager, host))
    else:
        for number in [n for n, vfs in behind.items() if not vfs]:
            behind[number] += rest[:1]
            del rest[:1]
    if len(behind) == 1:
        next(iter(behind.values())).extend(rest)
    return CardPorts(
        in_pf=in_pf, behind={n: tuple(vfs) for n, vfs in behind.items()}
    )


def _by_links(
    behind: Mapping[int, list[pci.PciAddress]],
    rest: list[pci.PciAddress],
    links: Mapping[pci.PciAddress, int],
) -> None:
    """PortRegion VFs of which one is missing: by their links' numbers."""
    order = list(behind)
    for vf in tuple(rest):
        place = links.get(vf, len(order))
        if place < len(order) and not behind[order[place]]:
            behind[order[place]].append(vf)
            rest.remove(vf)


def _numbers(card: fpga_card.DflCard) -> set[int]:
    """Return the numbers of the regions that the PF tells of."""
    layout = card.layout
    found = {p.number for p in layout.ports if p.is_shown}
    known = {n for n in found if n is not None}
    if card.model in fpga_card.FIXED:
        return known
    if layout.node is None or layout.interfaces is None:
        # What can't be read has a region all the same.
        known |= {p.number for p in layout.ports if p.number is not None}
        return known or {0}
    known |= set(range(len(layout.interfaces)))
    is_behind = not layout.ports and card.virtual_functions
    return known or ({0} if None in found or is_behind else set())


def places(
    card: fpga_card.DflCard,
    host: host_reader.HostReader,
    rules: policy.Policy,
    groups: dict[int, str],
) -> Iterator[PortRegion]:
    """Yield a card's regions and who would get them, by number.

    :param groups: IOMMU groups of regions that are offered, with the
        region's address; those of this card are added.
    """
    where = ports(card, host)
    given = {vf for vfs in where.behind.values() for vf in vfs}
    for number in where.numbers:
        vfs = where.behind.get(number, ())
        if card.is_hidden or number in where.in_pf:
            functions = _with(card)
            port = where.in_pf.get(number)
        else:
            functions = vfs
            port = _behind(vfs, number, host)
        yield PortRegion(
            number=number,
            functions=functions,
            port=port,
            refusal=_refusal(card, where, number, functions)
            or _objection(functions, host, rules)
            or _shared(
                names.region_address(card.address, number),
                functions,
                host,
                groups,
            ),
            dependents=_dependents(
                card, host, {*functions} | (given - {*vfs})
            ),
        )


def _with(card: fpga_card.DflCard) -> tuple[pci.PciAddress, ...]:
    """Return the PF and what shares its IOMMU group in its slot."""
    number = card.manager.iommu_group
    return (
        card.manager.address,
        *(
            other.address
            for other in card.others
            if number is not None and other.iommu_group == number
        ),
    )


def _behind(
    vfs: tuple[pci.PciAddress, ...], number: int, host: host_reader.HostReader
) -> dfl.DflPort | None:
    """Return the port that the guest's VF shows, None if it shows none."""
    if not vfs:
        return None
    port = dfl.read(host.files, str(vfs[0])).port(number)
    if port is not None:
        return port
    function = host.function(str(vfs[0]))
    if function is None or function.driver not in fpga_card.DRIVERS:
        return None
    return dfl.DflPort(number=number, reason=f"is not shown by {vfs[0]}")


def _refusal(
    card: fpga_card.DflCard,
    where: CardPorts,
    number: int,
    functions: tuple[pci.PciAddress, ...],
) -> str:
    """Return what the card's own state says against a region."""
    if not functions:
        return _missing(card)
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
        return "nothing tells which other ports are behind its function"
    others = ", ".join(str(n) for n in where.in_pf if n != number)
    if others:
        return (
            f"it is behind {manager.address} together with region {others},"
            f" and a function goes to one guest; {_ENABLE}"
        )
    return ""


def _missing(card: fpga_card.DflCard) -> str:
    """Return why a region has no function that could be given away."""
    if card.layout.node is None:
        return (
            f"the host's driver {card.driver} does not show the card's"
            " management (FME); see the kernel's log, or load it again"
        )
    if any(port.number is None for port in card.layout.ports):
        return "nothing tells where its port is"
    if not card.manager.total_vfs:
        return (
            "it is behind virtual functions, and there are none to enable;"
            " switch SR-IOV on in the firmware"
        )
    return f"it is behind virtual functions, and none is enabled; {_ENABLE}"


def _objection(
    addresses: tuple[pci.PciAddress, ...],
    host: host_reader.HostReader,
    rules: policy.Policy,
) -> str:
    """Return why functions can't be given to a guest, empty if they can."""
    for address in addresses:
        function = host.function(str(address))
        if function is None:
            return f"{address} can't be read"
        reason = (
            _held(function, rules)
            or iommu_group.objection(function, addresses, host, _MEND)
            or iommu_group.reset_objection(function, host)
        )
        if reason:
            return reason
    return ""


def _shared(
    region: str,
    addresses: tuple[pci.PciAddress, ...],
    host: host_reader.HostReader,
    groups: dict[int, str],
) -> str:
    """Return which other region is in the same IOMMU group, or nothing."""
    found = (host.function(str(address)) for address in addresses)
    for number in {f.iommu_group for f in found if f is not None}:
        if number is None:
            continue
        first = groups.setdefault(number, region)
        if first != region:
            return (
                f"it shares its IOMMU group with {first}, and a group goes"
                f" to one guest; {_MEND}"
            )
    return ""


def _held(function: pci.PciFunction, rules: policy.Policy) -> str:
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if rule.use is policy.DeviceUse.OFF:
        return f"device_spec says use off for {address}"
    if _is_idle(function):
        return ""
    return (
        f"the host's driver {function.driver} holds {address}; unbind it,"
        " and bind it to vfio-pci or to nothing"
    )


def _is_idle(function: pci.PciFunction) -> bool:
    """Return whether no driver uses what the card does."""
    return (
        function.driver in (None, *fpga_card.DRIVERS) or function.is_vfio_bound
    )


def _dependents(
    card: fpga_card.DflCard,
    host: host_reader.HostReader,
    apart: Iterable[pci.PciAddress],
) -> tuple[str, ...]:
    """Return what stops working when a region's function changes.

    :param apart: the functions that go to the guest with it, and the VFs
        that other regions are behind.
    """
    found = {f.address for f in card.others if not _is_idle(f)}
    found |= {*card.virtual_functions, *card.strange}
    return tuple(map(str, sorted(found - {*apart})))


def describe(
    card: fpga_card.DflCard, place: PortRegion, rule: policy.Rule
) -> model.Device:
    """Return a region as a device."""
    manager = card.manager
    interface = _interface(card, place.number)
    region = model.Region(
        card=card.address,
        number=place.number,
        function=place.port.function if place.port else None,
        interfaces=(interface,) if interface else (),
        is_programmable=bool(interface) and is_told(card, place),
        tool="fpgaconf" if card.driver == dfl.OLDER else "",
        driver=card.driver,
        dependents=place.dependents,
        blank=rule.blank,
    )
    count = 0 if place.refusal else 1
    slots = tuple(map(str, place.functions))
    return model.Device(
        address=names.region_address(card.address, place.number),
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


def _interface(card: fpga_card.DflCard, number: int) -> str:
    found = card.layout.interfaces or ()
    return found[number] if number < len(found) else ""


def is_mute(card: fpga_card.DflCard, number: int) -> bool:
    """Return whether a region can change, and does not tell into what."""
    found = card.layout.interfaces or ()
    return number < len(found) and not found[number]


def is_told(card: fpga_card.DflCard, place: PortRegion) -> bool:
    """Return whether the kernel can tell a region's function at all.

    Without that nobody can check what was loaded.
    """
    port = place.port or card.layout.port(place.number)
    return port is None or port.is_shown
