# SPDX-License-Identifier: Apache-2.0
"""Roles of the collection ``nova_accel.host``, and devices that need them."""

import dataclasses
from collections.abc import Callable, Collection, Iterator

from nova_accel import errors
from nova_accel.doctor import checked_host, host_checks
from nova_accel.model import pci

_Host = checked_host.CheckedHost
_Cards = Callable[[_Host], Iterator[pci.PciFunction]]
# Drivers of displays, and of no vendor's partitions.
_DISPLAY_DRIVERS = (
    *(None, "nouveau", "nova_core", "NovaCore", "nvidiafb"),
    *("amdgpu", "radeon", "i915"),
)
_XILINX, _ALTERA = "10ee", "1172"


def _select_none(host: _Host) -> Iterator[pci.PciFunction]:
    return iter(())


def _select_nvidia(host: _Host) -> Iterator[pci.PciFunction]:
    """Yield NVIDIA's GPUs without a driver of NVIDIA or VFIO."""
    for card in host.cards_of(checked_host.NVIDIA):
        if card.driver in _DISPLAY_DRIVERS:
            yield card


def _select_sriov(vendor: str) -> _Cards:
    def select(host: _Host) -> Iterator[pci.PciFunction]:
        """Yield GPUs with SR-IOV whose driver makes no VFs."""
        for card in host.cards_of(vendor):
            if card.total_vfs and card.driver in _DISPLAY_DRIVERS:
                yield card

    return select


def _select_qat(host: _Host) -> Iterator[pci.PciFunction]:
    """Yield QAT devices without a driver."""
    for card in host.qats:
        if card.driver is None:
            yield card


def _select_fpga(vendor: str) -> _Cards:
    def select(host: _Host) -> Iterator[pci.PciFunction]:
        """Yield FPGA cards of a vendor without a driver."""
        for card in host.fpgas:
            if card.vendor == vendor and card.driver is None:
                yield card

    return select


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverRole:
    """Role of the collection.

    ``technology`` is that of the checks of ``nova-accel doctor``.
    ``inputs`` are sets of variables of which the operator has to set one:
    sources that must not be distributed. ``find_cards`` yields the cards
    that need the role, whatever the checks say.
    """

    name: str
    technology: str = host_checks.HOST
    inputs: tuple[tuple[str, ...], ...] = ()
    find_cards: _Cards = _select_none


def _packaged(name: str) -> tuple[tuple[str, ...], ...]:
    return ((f"{name}_package_files",), (f"{name}_packages",))


# In the order in which they are installed.
ROLES = (
    DriverRole(name="iommu"),
    DriverRole(name="vfio"),
    DriverRole(name="blacklist"),
    DriverRole(
        name="nvidia_vgpu_host",
        technology="nvidia",
        inputs=(
            ("nvidia_vgpu_host_installer", "nvidia_vgpu_host_sha256"),
            ("nvidia_vgpu_host_packages",),
        ),
        find_cards=_select_nvidia,
    ),
    # Never planned: it excludes the vGPU manager.
    DriverRole(name="nvidia_datacenter", technology="nvidia"),
    DriverRole(name="nvidia_fabric_manager", technology="nvidia"),
    DriverRole(
        name="amd_gim",
        technology="amd",
        inputs=_packaged("amd_gim"),
        find_cards=_select_sriov(checked_host.AMD),
    ),
    DriverRole(
        name="intel_xe",
        technology="intel",
        find_cards=_select_sriov(checked_host.INTEL),
    ),
    DriverRole(name="qat", technology="qat", find_cards=_select_qat),
    DriverRole(
        name="dfl_opae", technology="fpga", find_cards=_select_fpga(_ALTERA)
    ),
    DriverRole(
        name="xrt",
        technology="fpga",
        inputs=_packaged("xrt"),
        find_cards=_select_fpga(_XILINX),
    ),
    DriverRole(name="nova_accel"),
)
TECHNOLOGIES = frozenset(role.technology for role in ROLES)


def select_roles(
    technologies: Collection[str], names: Collection[str] = ()
) -> tuple[DriverRole, ...]:
    """Return the roles of technologies and names, all without any.

    :raises MalformedError: no role has the technology or the name.
    """
    _require("technology of a driver", technologies, TECHNOLOGIES)
    _require("role", names, {role.name for role in ROLES})
    return tuple(
        role
        for role in ROLES
        if (not technologies or role.technology in technologies)
        and (not names or role.name in names)
    )


def _require(
    kind: str, values: Collection[str], choices: Collection[str]
) -> None:
    for value in values:
        if value not in choices:
            raise errors.MalformedError(
                kind, value, f"one of {', '.join(sorted(choices))}"
            )


def list_devices(host: _Host, technology: str) -> frozenset[str]:
    """Return addresses of the cards that a technology's drivers have."""
    vendors = {
        "nvidia": checked_host.NVIDIA,
        "amd": checked_host.AMD,
        "intel": checked_host.INTEL,
    }
    if technology == "qat":
        cards = host.qats
    elif technology == "fpga":
        cards = host.fpgas
    elif technology in vendors:
        cards = host.cards_of(vendors[technology])
    else:
        cards = ()
    return frozenset(str(card.address) for card in cards)
