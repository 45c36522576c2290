# SPDX-License-Identifier: Apache-2.0
"""Connection to libvirt; the only import of libvirt."""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from xml.etree import ElementTree

import libvirt

from nova_accel import errors
from nova_accel.model import domains, pci
from virt_hooks.guest import nodedev

LOG = logging.getLogger(__name__)

# libvirt waits for udev's word of a new mdev for up to a minute
# (node_device_driver.c, LINUX_NEW_DEVICE_WAIT_TIME); mdevctl itself takes
# a tenth of a second.
_PATIENCE_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostdevUse:
    """What the domains of a host, running or not, have in their XML.

    ``mdevs`` are uuids, ``functions`` PCI addresses.
    """

    mdevs: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()

    def holds(self, handle: str) -> bool:
        """Return whether a domain holds the partition of that handle."""
        return handle in self.mdevs or handle in self.functions

    def without(self, handles: Iterable[str]) -> "HostdevUse":
        """Return the same, but for partitions that were given back."""
        gone = frozenset(handles)
        return HostdevUse(
            mdevs=self.mdevs - gone, functions=self.functions - gone
        )


def read_hostdevs(connection: Any, is_running: bool = False) -> HostdevUse:
    """Return the host devices in all domains of a libvirt connection.

    :param connection: an open ``libvirt.virConnect``, or Nova's proxy
        of one.
    :param is_running: leave out domains that are defined only.
    :raises libvirt.libvirtError: libvirt can't list its domains.
    """
    mdevs: set[str] = set()
    functions: set[str] = set()
    flags = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE if is_running else 0
    for domain in connection.listAllDomains(flags):
        try:
            text = domain.XMLDesc(0)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                continue  # it ended since it was listed
            raise
        use = parse_hostdevs(text)
        mdevs |= use.mdevs
        functions |= use.functions
    return HostdevUse(mdevs=frozenset(mdevs), functions=frozenset(functions))


def read_domains(uri: str | None = None) -> tuple[domains.Domain, ...]:
    """Return what each domain of a host has of its devices.

    The connection is of its own, for reading only.

    :param uri: of the libvirt to ask; None for the one that libvirt itself
        takes (libvirt.org/uri.html, "Default URI choice").
    :raises DomainsError: libvirt can't be asked, or can't list them.
    """
    try:
        with contextlib.closing(libvirt.openReadOnly(uri)) as connection:
            listed = connection.listAllDomains(0)
            found = [_read_domain(domain) for domain in listed]
    except libvirt.libvirtError as error:
        raise errors.DomainsError(
            uri or "libvirt",
            f"{error}; see whether libvirtd or virtqemud runs, and whether"
            " this user may ask it",
        ) from error
    return tuple(one for one in found if one is not None)


def _read_domain(domain: Any) -> domains.Domain | None:
    """Return a domain; None for one that has ended since it was listed."""
    try:
        use = parse_hostdevs(domain.XMLDesc(0))
        return domains.Domain(
            uuid=domain.UUIDString(),
            name=domain.name(),
            is_running=bool(domain.isActive()),
            mdevs=use.mdevs,
            functions=use.functions,
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


class NodeDevices:
    """Mediated devices made and unmade through libvirt's node devices.

    Every method returns False where libvirt can't: without mdevctl, with
    a parent it does not know, on any error of its own. A libvirt that does
    not answer in time is not asked again.
    """

    def __init__(
        self, connect: Callable[[], Any], patience: float = _PATIENCE_S
    ) -> None:
        """Use the connection that ``connect`` returns.

        :param patience: how long one call may take, in seconds.
        """
        self._connect = connect
        self._patience = patience
        self._is_stuck = False

    def create(self, parent: str, type_id: str, uuid: str) -> bool:
        """Make a transient mdev; return whether libvirt did.

        :param parent: the name of its directory in sysfs.
        """

        def make() -> None:
            host = self._connect()
            known = frozenset(host.listDevices("mdev_types", 0))
            name = next(
                (n for n in nodedev.parent_names(parent) if n in known), None
            )
            if name is None:
                raise LookupError(f"it does not know {parent} as a parent")
            host.nodeDeviceCreateXML(nodedev.to_xml(name, type_id, uuid), 0)

        return self._is_done(f"create mdev {uuid}", make)

    def remove(self, uuid: str) -> bool:
        """Remove an mdev; return whether libvirt did."""

        def unmake() -> None:
            host = self._connect()
            name = nodedev.mdev_name(uuid, host.listDevices("mdev", 0))
            if name is None:
                raise LookupError("it does not know the mdev")
            host.nodeDeviceLookupByName(name).destroy()

        return self._is_done(f"remove mdev {uuid}", unmake)

    def _is_done(self, what: str, change: Callable[[], None]) -> bool:
        if self._is_stuck:
            return False
        outcome: list[str] = []

        def run() -> None:
            try:
                change()
            except Exception as error:  # the kernel's files remain
                outcome.append(str(error) or repr(error))
            else:
                outcome.append("")

        worker = threading.Thread(target=run, name="nodedev", daemon=True)
        worker.start()
        worker.join(self._patience)
        if not outcome:
            self._is_stuck = True
            outcome.append(f"no answer in {self._patience:g} s")
        if outcome[0]:
            LOG.info(
                "libvirt can't %s, the kernel's files are used: %s",
                what,
                outcome[0],
            )
        return not outcome[0]


def parse_hostdevs(text: str) -> HostdevUse:
    """Return the host devices in one domain's XML, as libvirt wrote it."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's own words
    addresses = [
        (hostdev.get("type"), address.attrib)
        for hostdev in root.iterfind("./devices/hostdev")
        for address in hostdev.iterfind("./source/address")
    ]
    # A function that is a guest's network card has an element of its own.
    addresses += [
        (address.get("type"), address.attrib)
        for address in root.iterfind(
            "./devices/interface[@type='hostdev']/source/address"
        )
    ]
    return HostdevUse(
        mdevs=frozenset(
            a["uuid"].lower() for kind, a in addresses if kind == "mdev"
        ),
        functions=frozenset(
            _address(a) for kind, a in addresses if kind == "pci"
        ),
    )


def find_hostdevs(text: str, handles: Collection[str]) -> tuple[str, ...]:
    """Return the hostdev elements of some devices in one domain's XML."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's own words
    found = (
        (element, parse_hostdevs(_alone(element)))
        for element in root.iterfind("./devices/hostdev")
    )
    return tuple(
        ElementTree.tostring(element, encoding="unicode").strip()
        for element, use in found
        if any(use.holds(handle) for handle in handles)
    )


def are_in_one_slot(elements: Iterable[str]) -> bool:
    """Return whether a guest sees two of some devices in one PCI slot.

    It can't be asked to give those away (libvirt's qemu_hotplug.c, "cannot
    hot unplug multifunction PCI device").
    """
    places = [
        tuple(int(found.get(k) or "0", 0) for k in ("domain", "bus", "slot"))
        for text in elements
        for found in ElementTree.fromstring(text).iterfind(  # noqa: S314
            "./address[@type='pci']"
        )
    ]
    return len(set(places)) < len(places)


@contextlib.contextmanager
def answering(domain: str) -> Iterator[None]:
    """Turn what libvirt refuses of a domain into an error of ours.

    :raises DomainsError: it refused.
    """
    try:
        yield
    except libvirt.libvirtError as error:
        raise errors.DomainsError(domain, f"libvirt says: {error}") from error


def _alone(element: ElementTree.Element) -> str:
    """Return a domain that has nothing but one device."""
    root = ElementTree.Element("domain")
    ElementTree.SubElement(root, "devices").append(element)
    return ElementTree.tostring(root, encoding="unicode")


def _address(attributes: dict[str, str]) -> str:
    return str(
        pci.PciAddress(
            domain=int(attributes.get("domain", "0"), 0),
            bus=int(attributes["bus"], 0),
            slot=int(attributes["slot"], 0),
            function=int(attributes["function"], 0),
        )
    )
