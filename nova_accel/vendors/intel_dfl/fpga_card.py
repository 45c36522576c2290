# SPDX-License-Identifier: Apache-2.0
"""An Intel FPGA card: its PCI functions and its board."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel.catalog import pci_ids
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group

DRIVERS = (dfl.IN_KERNEL, dfl.OLDER)
_INTEL = "8086"
# Physical and virtual functions that the kernel's driver binds to
# (drivers/fpga/dfl-pci.c, cci_pcie_id_tbl).
_PHYSICAL = frozenset(
    {
        *(f"{_INTEL}:{p}" for p in ("09c4", "0b2b", "0b30", "bcbd")),
        *(f"{_INTEL}:{p}" for p in ("bcc0", "bcce")),
        *("1c2c:1000", "1c2c:1001"),  # Silicom N5010 and N5011
    }
)
_VIRTUAL = frozenset({"09c5", "0b2c", "bcbf", "bcc1", "bccf"})
# Names by product id and, for what is sold in several forms under one id,
# the subsystem's (the same table).
_MODELS: Mapping[tuple[str, str], str] = {
    ("09c4", ""): "Arria 10 PAC",
    ("0b2b", ""): "D5005",
    ("0b30", ""): "N3000",
    ("bcce", "1770"): "N6000",
    ("bcce", "1771"): "N6001",
    ("bcce", "17d4"): "C6100",
}
# Cards on which nothing can be reconfigured while they run.
FIXED = frozenset({"C6100"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DflCard:
    """A card and all of its PCI functions.

    ``manager`` is the one with the FME, or where no driver shows it the
    one that must have it. ``others`` are the further physical functions
    in its slot, ``strange`` the VFs of those; ``layout`` is what the
    manager shows. ``driver`` is the one that shows the card, or that would.
    """

    manager: pci.PciFunction
    layout: dfl.DflLayout
    driver: str
    others: tuple[pci.PciFunction, ...] = ()
    strange: tuple[pci.PciAddress, ...] = ()

    @property
    def address(self) -> str:
        """Return the manager's address."""
        return str(self.manager.address)

    @property
    def virtual_functions(self) -> tuple[pci.PciAddress, ...]:
        """Return the manager's VFs, in the order of their numbers."""
        return self.manager.virtual_functions

    @property
    def is_hidden(self) -> bool:
        """Return whether no driver of the host shows the card."""
        return not self.layout.node and (
            self.manager.driver is None or self.manager.is_vfio_bound
        )

    @property
    def model(self) -> str:
        """Return the card's name, or its ids where none is known."""
        return _name(self.manager) or (
            f"{self.manager.vendor}:{self.manager.product}"
        )

    @property
    def identity(self) -> frozenset[str]:
        """Return the traits that the card and its regions share."""
        one = self.manager
        return names.identity_traits(one.vendor, one.product, one.numa_node)

    @property
    def traits(self) -> frozenset[str]:
        """Return the traits that say what the card is."""
        found = set(self.identity)
        if name := _name(self.manager):
            found.add(names.model_trait(self.manager.vendor, name))
        if self.layout.static:
            found.add(names.custom("FPGA_STATIC", self.layout.static))
        return frozenset(found)

    @property
    def members(self) -> tuple[str, ...]:
        """Return the addresses of all functions besides the manager."""
        found = {f.address for f in self.others}
        found |= {*self.virtual_functions, *self.strange}
        return tuple(map(str, sorted(found)))


def _name(function: pci.PciFunction) -> str:
    if function.vendor != _INTEL:
        return ""
    for subsystem in (function.subsystem_product, ""):
        name = _MODELS.get((function.product, subsystem))
        if name:
            return name
    return ""


def find(host: host_reader.HostReader) -> Iterator[DflCard]:
    """Yield the cards of a host, by address.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    slots: dict[tuple[int, int, int], list[pci.PciFunction]] = {}
    for function in host.functions():
        if function.physfn is None and not _is_apart(function):
            one = function.address
            where = (one.domain, one.bus, one.slot)
            slots.setdefault(where, []).append(function)
    for functions in slots.values():
        yield from _cards(functions, host)


def _is_apart(function: pci.PciFunction) -> bool:
    """Return whether a function is a part of no card."""
    is_virtual = function.vendor == _INTEL and function.product in _VIRTUAL
    is_other = pci_ids.is_gpu(function) or pci_ids.find(function)
    return function.is_bridge or is_virtual or bool(is_other)


def strays(host: host_reader.HostReader) -> Iterator[pci.PciFunction]:
    """Yield the VFs of such cards whose PF is not there.

    Of a PF that can't be read, the reader has told.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for function in host.functions():
        if function.vendor != _INTEL or function.product not in _VIRTUAL:
            continue
        above = str(function.physfn)
        if host.function(above) is None and above not in host.unknown():
            yield function


def _cards(
    functions: Sequence[pci.PciFunction], host: host_reader.HostReader
) -> Iterator[DflCard]:
    """Yield the card that a slot's functions make, if they make one.

    Real cards have one FME; in a slot made up of several cards each
    function with an FME is one.
    """
    layouts = {
        f.address: dfl.read(host.files, str(f.address)) for f in functions
    }
    managers = [f for f in functions if layouts[f.address].node] or [
        f
        for f in functions
        if _is_first(f, functions, host)
        and _is_known(f)
        and not iommu_group.is_stray_vf(f, host)
    ][:1]
    others = tuple(f for f in functions if f not in managers)
    for manager in managers:
        yield DflCard(
            manager=manager,
            layout=layouts[manager.address],
            driver=_driver(manager, layouts[manager.address], host),
            others=others,
            strange=tuple(v for f in others for v in f.virtual_functions),
        )
        others = ()


def _is_first(
    function: pci.PciFunction,
    functions: Sequence[pci.PciFunction],
    host: host_reader.HostReader,
) -> bool:
    """Return whether a function manages its card, if it is one at all.

    Of cards with several functions it is the first; the others are not
    the card while that one can't be read, is gone, or works for the host.
    """
    one = function.address
    if one.function == 0:
        return True
    above = str(dataclasses.replace(one, function=0))
    return len(functions) == 1 and above not in host.unknown()


def _driver(
    manager: pci.PciFunction,
    layout: dfl.DflLayout,
    host: host_reader.HostReader,
) -> str:
    if layout.driver:
        return layout.driver
    if manager.driver in DRIVERS:
        return manager.driver
    return dfl.usual_driver(host.files)


def _is_known(function: pci.PciFunction) -> bool:
    """Return whether a function is such a card's, by driver or by ids.

    One that another driver has, as for access from user space, is left
    alone.
    """
    if function.driver in DRIVERS:
        return True
    free = (
        function.driver in (None, iommu_group.UNKNOWN)
        or function.is_vfio_bound
    )
    return free and f"{function.vendor}:{function.product}" in _PHYSICAL
