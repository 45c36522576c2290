# SPDX-License-Identifier: Apache-2.0
"""An Alveo card: its PCI functions and its board."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel.host.fpga import xrt
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group

VENDOR = "10ee"
# Boards by product id of the management function, and the product ids of
# their user functions (XRT, xocl/devices.h; 500c and 500d from pci.ids).
_BOARDS: Mapping[str, tuple[str, str]] = {
    "5000": ("U200", "5001"),
    "5004": ("U250", "5005"),
    "500c": ("U280", "500d"),
    "5020": ("U50", "5021"),
    "5028": ("", "5029"),
    "5034": ("U2", "5035"),
    "503c": ("U30", "503d"),
    "5044": ("VCK5000", "5045"),
    "5048": ("VCK5000", "5049"),
    "504e": ("U26Z", "504f"),
    "5050": ("U25", "5051"),
    "5058": ("U55N", "5059"),
    "505c": ("U55C", "505d"),
    "5060": ("U50LV", "5061"),
    "506c": ("U50C", "506d"),
    "5074": ("X3522PV", "5075"),
    "5078": ("V65", "5079"),
    "5094": ("V70", "5095"),
    "50b0": ("V70", "50b1"),
    "50b4": ("V80", "50b5"),
    "513c": ("U30", "513d"),
}
# Boards whose flash holds the factory's image only: they have no user
# function (XOCL_MGMT_PCI_IDS, XBB_MFG; pci.ids, "Golden Image").
_GOLDEN: Mapping[str, str] = {
    "d000": "U200",
    "d004": "U250",
    "d00c": "U280",
    "d020": "U50",
    "d03c": "U30",
    "d04c": "U25",
}
_MANAGERS = {user: manager for manager, (_, user) in _BOARDS.items()}
GOLDEN = frozenset(_GOLDEN)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AlveoCard:
    """A card and its PCI functions.

    ``address`` is the management function's, ``slot`` the user function's,
    empty without one. ``manager`` and ``user`` are None if they can't be
    read. ``others`` are further functions in the same PCI slot.
    """

    address: str
    slot: str
    manager: pci.PciFunction | None
    user: pci.PciFunction | None
    others: tuple[str, ...] = ()

    @property
    def product(self) -> str:
        """Return the management function's product id, empty if unknown."""
        if self.manager is not None:
            return self.manager.product
        return _MANAGERS.get(self.user.product, "") if self.user else ""

    @property
    def vendor(self) -> str:
        function = self.manager or self.user
        return function.vendor if function else ""

    @property
    def driver(self) -> str | None:
        """Return the management function's driver."""
        return self.manager.driver if self.manager else iommu_group.UNKNOWN

    @property
    def numa_node(self) -> int | None:
        """Return the NUMA node, None if the firmware names none."""
        function = self.manager or self.user
        return function.numa_node if function else None

    @property
    def is_managed(self) -> bool:
        """Return whether XRT's management driver is bound."""
        return self.driver == xrt.MANAGEMENT_DRIVER

    @property
    def is_shown(self) -> bool:
        """Return whether XRT's user driver (xocl) is bound."""
        return self.user is not None and self.user.driver == xrt.USER_DRIVER

    @property
    def members(self) -> tuple[str, ...]:
        """Return the addresses of all functions except the manager."""
        return (*filter(None, (self.slot,)), *self.others)

    def get_board(self, driver_name: str) -> str:
        """Return the board's name, empty if unknown.

        :param driver_name: the name that the drivers report.
        """
        if self.product in _GOLDEN:
            return _GOLDEN[self.product]
        board, _ = _BOARDS.get(self.product, ("", ""))
        return board or driver_name.upper()

    def identity(self) -> frozenset[str]:
        return names.identity_traits(self.vendor, self.product, self.numa_node)


def find_cards(host: host_reader.HostReader) -> Iterator[AlveoCard]:
    """Yield the cards, one for each PCI slot with a management function.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for functions, unread in _group_by_slot(host):
        managers = [f for f in functions if _is_manager(f)]
        users = [f for f in functions if _is_user(f)]
        if managers:
            yield _build_managed_card(managers[0], functions, unread)
        elif users and (hidden := [a for a in unread if a < users[0].address]):
            yield _build_card(hidden[0], None, users[0], functions, unread)


def find_users_without_manager(
    host: host_reader.HostReader,
) -> Iterator[pci.PciFunction]:
    """Yield the user functions without a management function.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for functions, unread in _group_by_slot(host):
        if unread or any(map(_is_manager, functions)):
            continue
        yield from filter(_is_user, functions)


def _group_by_slot(
    host: host_reader.HostReader,
) -> Iterator[tuple[Sequence[pci.PciFunction], Sequence[pci.PciAddress]]]:
    """Yield the functions of each PCI slot, and its unreadable addresses."""
    slots: dict[object, list[pci.PciFunction]] = collections.defaultdict(list)
    for function in host.functions():
        if function.physfn is None:
            slots[_slot_key(function.address)].append(function)
    unread: dict[object, list[pci.PciAddress]] = collections.defaultdict(list)
    for name in sorted(filter(pci.is_address, host.unknown())):
        address = pci.parse_address(name)
        unread[_slot_key(address)].append(address)
    for slot, functions in slots.items():
        yield functions, unread[slot]


def _slot_key(address: pci.PciAddress) -> object:
    return address.domain, address.bus, address.slot


def _is_manager(function: pci.PciFunction) -> bool:
    return function.driver == xrt.MANAGEMENT_DRIVER or (
        function.vendor == VENDOR
        and (function.product in _BOARDS or function.product in _GOLDEN)
    )


def _is_user(function: pci.PciFunction) -> bool:
    return function.driver == xrt.USER_DRIVER or (
        function.vendor == VENDOR and function.product in _MANAGERS
    )


def _build_managed_card(
    manager: pci.PciFunction,
    functions: Sequence[pci.PciFunction],
    unread: Sequence[pci.PciAddress],
) -> AlveoCard:
    """Return the card of a management function.

    Its user function has a known product id or, on unknown cards, is the
    next function of the same vendor.
    """
    rest = [
        f
        for f in functions
        if f.vendor == manager.vendor and not _is_manager(f)
    ]
    user = next(filter(_is_user, rest), next(iter(rest), None))
    return _build_card(manager.address, manager, user, functions, unread)


def _build_card(
    address: pci.PciAddress,
    manager: pci.PciFunction | None,
    user: pci.PciFunction | None,
    functions: Sequence[pci.PciFunction],
    unread: Sequence[pci.PciAddress],
) -> AlveoCard:
    rest = [a for a in unread if a != address]
    slot = user.address if user else next(iter(rest), None)
    everything = {*rest, *(f.address for f in functions)}
    return AlveoCard(
        address=str(address),
        slot=str(slot or ""),
        manager=manager,
        user=user,
        others=tuple(map(str, sorted(everything - {address, slot}))),
    )
