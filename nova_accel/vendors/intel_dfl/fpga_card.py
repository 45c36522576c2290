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
# Ids of PFs and VFs that the kernel's driver binds to
# (drivers/fpga/dfl-pci.c, cci_pcie_id_tbl).
_PHYSICAL = frozenset(
    {
        *(f"{_INTEL}:{p}" for p in ("09c4", "0b2b", "0b30", "bcbd")),
        *(f"{_INTEL}:{p}" for p in ("bcc0", "bcce")),
        *("1c2c:1000", "1c2c:1001"),  # Silicom N5010 and N5011
    }
)
_VIRTUAL = frozenset({"09c5", "0b2c", "bcbf", "bcc1", "bccf"})
# Model names by product id and subsystem id (the same table); the latter
# only for models that share a product id.
_MODELS: Mapping[tuple[str, str], str] = {
    ("09c4", ""): "Arria 10 PAC",
    ("0b2b", ""): "D5005",
    ("0b30", ""): "N3000",
    ("bcce", "1770"): "N6000",
    ("bcce", "1771"): "N6001",
    ("bcce", "17d4"): "C6100",
}
# Models without partial reconfiguration.
FIXED = frozenset({"C6100"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DflCard:
    """A card and all of its PCI functions.

    ``manager`` is the PF with the management (FME) or, if no driver shows
    it, the PF that must have it. ``others`` are the other physical
    functions in its slot, ``other_vfs`` their VFs. ``layout`` is the
    manager's feature list. ``driver`` is the kernel driver of the card, or
    the driver to bind if it has none.
    """

    manager: pci.PciFunction
    layout: dfl.DflLayout
    driver: str
    others: tuple[pci.PciFunction, ...] = ()
    other_vfs: tuple[pci.PciAddress, ...] = ()

    @property
    def address(self) -> str:
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
        """Return the model name, or the PCI ids if it is unknown."""
        return _get_model_name(self.manager) or (
            f"{self.manager.vendor}:{self.manager.product}"
        )

    @property
    def identity(self) -> frozenset[str]:
        """Return the traits that the card and its regions share."""
        manager = self.manager
        return names.identity_traits(
            manager.vendor, manager.product, manager.numa_node
        )

    @property
    def traits(self) -> frozenset[str]:
        """Return the traits of the card: identity, model, static part."""
        traits = set(self.identity)
        if name := _get_model_name(self.manager):
            traits.add(names.model_trait(self.manager.vendor, name))
        if self.layout.static:
            traits.add(names.custom_name("FPGA_STATIC", self.layout.static))
        return frozenset(traits)

    @property
    def members(self) -> tuple[str, ...]:
        """Return the addresses of all functions except the manager."""
        addresses = {f.address for f in self.others}
        addresses |= {*self.virtual_functions, *self.other_vfs}
        return tuple(map(str, sorted(addresses)))


def _get_model_name(function: pci.PciFunction) -> str:
    if function.vendor != _INTEL:
        return ""
    for subsystem in (function.subsystem_product, ""):
        name = _MODELS.get((function.product, subsystem))
        if name:
            return name
    return ""


def find_cards(host: host_reader.HostReader) -> Iterator[DflCard]:
    """Yield the cards of a host, by address.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    slots: dict[tuple[int, int, int], list[pci.PciFunction]] = {}
    for function in host.functions():
        if function.physfn is None and not _is_other_device(function):
            address = function.address
            slot = (address.domain, address.bus, address.slot)
            slots.setdefault(slot, []).append(function)
    for functions in slots.values():
        yield from _build_cards(functions, host)


def _is_other_device(function: pci.PciFunction) -> bool:
    """Return whether a function is a VF, a bridge, or another device."""
    is_virtual = function.vendor == _INTEL and function.product in _VIRTUAL
    is_other = pci_ids.is_gpu(function) or pci_ids.find(function)
    return function.is_bridge or is_virtual or bool(is_other)


def find_stray_vfs(host: host_reader.HostReader) -> Iterator[pci.PciFunction]:
    """Yield the VFs whose PF is not on the bus.

    The reader reports PFs that are on the bus and can't be read.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for function in host.functions():
        if function.vendor != _INTEL or function.product not in _VIRTUAL:
            continue
        pf = str(function.physfn)
        if host.function(pf) is None and pf not in host.unknown():
            yield function


def _build_cards(
    functions: Sequence[pci.PciFunction], host: host_reader.HostReader
) -> Iterator[DflCard]:
    """Yield the card in a PCI slot, if there is one.

    Real cards have one FME. If several functions of a slot have one, each
    is a card.
    """
    layouts = {
        f.address: dfl.read(host.files, str(f.address)) for f in functions
    }
    managers = [f for f in functions if layouts[f.address].node] or [
        f
        for f in functions
        if _is_first(f, functions, host)
        and _is_supported(f)
        and not iommu_group.is_stray_vf(f, host)
    ][:1]
    others = tuple(f for f in functions if f not in managers)
    for manager in managers:
        yield DflCard(
            manager=manager,
            layout=layouts[manager.address],
            driver=_get_driver(manager, layouts[manager.address], host),
            others=others,
            other_vfs=tuple(v for f in others for v in f.virtual_functions),
        )
        others = ()


def _is_first(
    function: pci.PciFunction,
    functions: Sequence[pci.PciFunction],
    host: host_reader.HostReader,
) -> bool:
    """Return whether a function would manage its card.

    Function 0 does; another function does only if it is alone in its slot
    and function 0 is not on the bus at all.
    """
    address = function.address
    if address.function == 0:
        return True
    first = str(dataclasses.replace(address, function=0))
    return len(functions) == 1 and first not in host.unknown()


def _get_driver(
    manager: pci.PciFunction,
    layout: dfl.DflLayout,
    host: host_reader.HostReader,
) -> str:
    if layout.driver:
        return layout.driver
    if manager.driver in DRIVERS:
        return manager.driver
    return dfl.default_driver(host.files)


def _is_supported(function: pci.PciFunction) -> bool:
    """Return whether a function is a supported PF, by driver or by ids.

    A PF that is bound to another driver, for example for access from user
    space, is not.
    """
    if function.driver in DRIVERS:
        return True
    free = (
        function.driver in (None, iommu_group.UNKNOWN)
        or function.is_vfio_bound
    )
    return free and f"{function.vendor}:{function.product}" in _PHYSICAL
