# SPDX-License-Identifier: Apache-2.0
"""Hostdev elements in the guests that Nova builds, and their layouts.

The entry point of the group ``nova_accel.guest_layouts`` is a class that
takes a ``LayoutContext``.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lxml import etree
from nova import exception
from nova.virt.libvirt import config as vconfig

from nova_accel import errors, model
from nova_accel.discovery import snapshot
from nova_accel.model import flavors, pci
from placement_sync.client import provider_records
from virt_hooks.guest import connection, guest_pci, hostdev, hypervisor

LAYOUTS_GROUP = "nova_accel.guest_layouts"


def add_claims(
    config: Any,
    claims: Iterable[model.Claim],
    options: flavors.Options,
    reader: hypervisor.HypervisorReader,
    places: guest_pci.Places | None = None,
) -> None:
    """Add the devices of a server's claims to its guest's configuration.

    :param config: a ``LibvirtConfigGuest``, otherwise complete.
    :param places: as of ``hostdev.plan_elements``.
    :raises ClaimError: the guest can't have them with these options.
    """
    claims = tuple(claims)
    if not claims:
        return
    guest = guest_pci.parse_guest(config.to_xml())
    host = reader.read(guest)
    for xml in hostdev.plan_elements(claims, guest, options, host, places):
        config.add_device(RawElement(xml))
    nodes = hostdev.plan_memory_nodes(claims, guest, options)
    _add_empty_nodes(config, itertools.chain(*nodes.values()))


def _add_empty_nodes(config: Any, nodes: Iterable[int]) -> None:
    """Add NUMA nodes without CPUs and memory to a guest's configuration."""
    ids = list(nodes)
    if not ids:
        return
    if config.cpu is None:
        config.cpu = vconfig.LibvirtConfigGuestCPU()
    if config.cpu.numa is None:
        config.cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
    cells = config.cpu.numa.cells
    if not cells:
        cells.append(_cell(0, set(range(config.vcpus)), config.memory))
    cells.extend(_cell(number, None, 0) for number in ids)


def _cell(number: int, cpus: set[int] | None, memory: int) -> Any:
    """Return a NUMA node; ``memory`` is in KiB."""
    cell = vconfig.LibvirtConfigGuestCPUNUMACell()
    cell.id, cell.cpus, cell.memory = number, cpus, memory
    return cell


def read_use(host: Any, instance: Any) -> connection.HostdevUse:
    """Return the hostdevs of a server's domain, none without a domain.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    with contextlib.suppress(exception.InstanceNotFound):
        return connection.parse_hostdevs(
            host.get_guest(instance).get_xml_desc()
        )
    return connection.HostdevUse()


def is_holding(host: Any, instance: Any, claim: model.Claim) -> bool:
    """Return whether a server's running guest has a partition.

    :param host: Nova's ``nova.virt.libvirt.host.Host``.
    :param instance: a ``nova.objects.Instance``.
    """
    try:
        guest = host.get_guest(instance)
        if not guest.is_active():
            return False
        xml = guest.get_xml_desc()
    except exception.InstanceNotFound:
        return False
    return connection.parse_hostdevs(xml).holds(claim.handle)


class RawElement(vconfig.LibvirtConfigGuestDevice):
    """Device of Nova's configuration with its XML given as text."""

    def __init__(self, xml: str) -> None:
        super().__init__(root_name=etree.fromstring(xml).tag)
        self._xml = xml

    def format_dom(self) -> Any:
        return etree.fromstring(self._xml)


class ChangedGuest:
    """Nova's ``Guest`` that arrives with typed VFs in place of its mdevs."""

    def __init__(self, guest: Any, functions: Mapping[str, str]) -> None:
        """:param functions: PCI addresses by the uuids of mdevs."""
        self._guest, self._functions = guest, functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def get_xml_desc(self, *args: Any, **kwargs: Any) -> str:
        """Return the XML of the guest; changed, if it is to migrate."""
        text: str = self._guest.get_xml_desc(*args, **kwargs)
        if not kwargs.get("dump_migratable"):
            return text
        return replace_mdevs(text, self._functions)


def replace_mdevs(text: str, functions: Mapping[str, str]) -> str:
    """Return a guest's XML with typed VFs in place of mdevs.

    The guest sees them at the same addresses, with the same options.

    :param functions: see ``ChangedGuest``.
    """
    root = etree.fromstring(text)
    for element in root.iterfind("./devices/hostdev[@type='mdev']"):
        address = element.find("./source/address")
        function = functions.get(address.get("uuid", "").lower())
        if function is None:
            continue
        element.set("type", "pci")
        element.attrib.pop("model")
        address.attrib.clear()
        address.attrib.update(
            hostdev.source_address(pci.parse_address(function))
        )
    return str(etree.tostring(root, encoding="unicode"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutContext:
    """Objects of one nova-compute.

    ``state`` is the last reading of the host, ``get`` reads Placement.
    ``root`` is the directory that holds ``sys``. ``topology`` is the default
    of the host, None if it depends on the guest.
    """

    host: Any
    hypervisor: hypervisor.HypervisorReader
    state: snapshot.Snapshot
    get: provider_records.Get
    root: str = "/"
    topology: flavors.GuestTopology | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A guest on its way to this host, and the devices that it gets here.

    ``described`` is the text of ``GuestLayouts.describe_guest`` of its
    source. ``handles`` has the new handles by the old ones, and ``kinds`` a
    kind of each old one: those of one kind are interchangeable. ``cells`` has
    the NUMA nodes of the guest by those of this host.
    """

    uuid: str
    described: str
    claims: Sequence[model.Claim]
    handles: Mapping[str, str]
    kinds: Mapping[str, str]
    cells: Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A claim that is attached to a guest.

    ``text`` is the XML of its definition, ``others`` are the claims of the
    devices that it has.
    """

    uuid: str
    text: str
    claim: model.Claim
    others: Sequence[model.Claim]
    is_running: bool


class GuestLayouts:
    """Layouts of a host whose guests have all devices on one bus."""

    def plan(
        self,
        config: Any,
        uuid: str,
        options: flavors.Options,
        claims: Iterable[model.Claim],
    ) -> guest_pci.Places | None:
        """Add PCI controllers to a guest; return the places of its devices.

        None, and no controllers, for devices on one bus.

        :param config: a ``LibvirtConfigGuest``, otherwise complete.
        :raises ClaimError: the guest can't have the topology of its flavor.
        """
        if options.guest_topology not in (None, flavors.GuestTopology.NONE):
            raise errors.ClaimError(
                uuid,
                "the entry point of nova-accel's guest layouts is missing"
                " here: install nova-accel again",
            )
        return None

    def correct_buses(self, guest: Any) -> None:
        """Correct the buses and windows of a guest before its start.

        :param guest: a ``nova.virt.libvirt.guest.Guest``.
        :raises AcceleratorError: the guest would lose devices.
        """

    def place_attached(self, attached: Attached) -> guest_pci.Places | None:
        """Return the places of an attached claim.

        None for those of ``guest_pci.plan_layout``.

        :raises ClaimError: the guest has no room for it while it runs.
        """
        return None

    def describe_guest(
        self, text: str, options: flavors.Options, handles: Collection[str]
    ) -> str:
        """Return what a guest sees of some devices, for another host.

        Empty for devices on one bus.

        :param text: XML of a domain that libvirt has defined.
        """
        return ""

    def pair_handles(self, arrival: Arrival) -> Mapping[str, str]:
        """Return the new handles of a guest's devices by the old ones.

        So that the devices of this host are as the guest sees them.

        :raises ClaimError: they are not, with what differs.
        """
        return arrival.handles

    def predict_buses(self, text: str) -> Mapping[int, int]:
        """Return the bus numbers that the guest sees, by libvirt's.

        A bus that is left out has libvirt's number.

        :param text: XML of a domain that libvirt has defined.
        """
        return {}
