# SPDX-License-Identifier: Apache-2.0
"""Nova's fake libvirt, connected to the simulated kernel.

A domain starts only if its host devices exist and are free, and
holds them while it runs, as QEMU holds a VFIO group: removing an mdev
under a running guest blocks. ``managed='yes'`` binds PCI functions to
vfio-pci and gives them back; ``managed='no'`` wants one whose own driver
is of VFIO. A guest that runs has host devices of its own, beside those of
its definition: some come and go while it runs, and a guest that has any
can't be saved.
"""

import collections
import contextlib
import copy
import errno
import fcntl
import functools
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

_VFIO = "vfio-pci"
# VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, which Nova's fixture does not have.
_DEVICE_ADDED = 19
_Method = TypeVar("_Method", bound=Callable[..., Any])
_OVERRIDE = "{http://libvirt.org/schemas/domain/qemu/1.0}override"
# Nova's fixture describes each domain with it, and Nova writes none.
_DESCRIBED = "<on_poweroff>"
_ACTIVE = (fakelibvirt.VIR_DOMAIN_RUNNING, fakelibvirt.VIR_DOMAIN_PAUSED)


class Connection(fakelibvirt.Connection):
    """A libvirt whose host is below ``root``."""

    def __init__(self, *args: Any, root: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.root = root
        #: As libvirt's job of a domain, though one for all of them.
        self.job = threading.RLock()
        self._callbacks: dict[tuple[int, str], tuple[Any, Any]] = {}
        #: Number of requests for the XML of each domain.
        self.xml_requests: collections.Counter[str] = collections.Counter()

    def domainEventRegisterAny(
        self, domain: Any, event: int, callback: Any, opaque: Any
    ) -> int:
        """Add a callback in place of the same one of an ended service."""
        key = event, callback.__qualname__
        self._callbacks[key] = callback, opaque
        return 0

    def emit(self, kind: int, domain: Any, *details: Any) -> None:
        """Call all callbacks of an event."""
        for (event, _), (callback, opaque) in [*self._callbacks.items()]:
            if event == kind:
                callback(self, domain, *details, opaque)

    def _emit_lifecycle(self, domain: Any, event: int, detail: int) -> None:
        kind = fakelibvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        self.emit(kind, domain, event, detail)

    def defineXML(self, xml: str) -> "Domain":
        domain = Domain(self, xml, running=False, transient=False)
        domain.definition_xml = domain.nova_xml = xml
        old = self._vms.get(domain.name())
        if old is not None:
            if _DESCRIBED in xml:
                domain.nova_xml = old.nova_xml
            domain.groups = old.groups  # the running guest goes on
            domain.saved = old.saved
            domain._has_saved_state = old._has_saved_state
        self._vms[domain.name()] = domain
        self._emit_lifecycle(domain, fakelibvirt.VIR_DOMAIN_EVENT_DEFINED, 0)
        return domain

    def close(self) -> int:
        """Go on: it is the only connection of this libvirt."""
        return 0

    def listAllDomains(self, flags: int = 0) -> list[Any]:
        """Return the domains; flags of 0 mean all, as in libvirt."""
        if flags == 0:
            return list(self._vms.values())
        domains: list[Any] = super().listAllDomains(flags)
        return domains


def _job(method: _Method) -> _Method:
    """Let libvirt do one thing with its domains at a time."""

    @functools.wraps(method)
    def call(domain: Any, *arguments: Any, **words: Any) -> Any:
        with domain._connection.job:
            return method(domain, *arguments, **words)

    return cast(_Method, call)


class Domain(fakelibvirt.Domain):
    """A domain that takes its host devices from the kernel."""

    def __init__(self, connection: Any, xml: str, **kwargs: Any) -> None:
        super().__init__(connection, xml, **kwargs)
        #: File handles of the VFIO groups that the guest holds.
        self.groups: dict[str, int] = {}
        #: As it was defined: Nova's fixture drops unknown elements.
        self.definition_xml = ""
        #: As Nova has built it, before a change of what this libvirt prints.
        self.nova_xml = ""
        self.defined = _elements(etree.fromstring(xml))
        #: Host devices of the running guest, and of the saved one.
        self.live: list[Any] = []
        self.saved: list[Any] | None = None
        #: Whether the guest keeps a device that it is asked to release.
        self.is_stubborn = False

    def isActive(self) -> int:
        return int(self._state in _ACTIVE)

    def ID(self) -> int:
        """Return the number of this run, -1 for a guest that is off."""
        return int(self._id) if self.isActive() else -1

    def XMLDesc(self, flags: int) -> str:
        """Return the guest, or its definition, with all of its hostdevs."""
        self._connection.xml_requests[self.UUIDString()] += 1
        current = self._connection._vms.get(self.name(), self)
        if current is not self and not self.isActive():  # it was redefined
            return str(current.XMLDesc(flags))
        root = etree.fromstring(super().XMLDesc(flags))
        devices = root.find("./devices")
        for element in _elements(root):
            devices.remove(element)
        is_definition = flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE
        elements = (
            self.defined if is_definition or not self.isActive() else self.live
        )
        devices.extend(copy.deepcopy(elements))
        definition = etree.fromstring(self.definition_xml or "<domain/>")
        devices.extend(_list_pci_controllers(definition))
        root.extend(copy.deepcopy(definition.findall(f"./{_OVERRIDE}")))
        if is_definition:
            root.extend(copy.deepcopy(definition.findall("./cpu")))
        kind = definition.find("./os/type")
        if kind is not None and kind.get("machine"):
            root.find("./os/type").set("machine", kind.get("machine"))
        return str(etree.tostring(root, encoding="unicode"))

    @_job
    def createWithFlags(self, flags: int) -> None:
        current = self._connection._vms.get(self.name())
        if current is None:
            raise failed(f"no domain with name {self.name()}", "NO_DOMAIN")
        if current is not self:  # it was redefined meanwhile
            current.createWithFlags(flags)
            return
        elements = self.defined if self.saved is None else self.saved
        taken: list[Any] = []
        try:
            for element in elements:
                self._take(element)
                taken.append(element)
        except OSError as error:
            # Another guest may run with the device that was refused.
            self.close_groups()
            for element in taken:
                _device(self._connection.root, element).give_back()
            raise failed(f"host device of {self.name()}: {error}") from error
        self._id = self._connection._id_counter
        super().createWithFlags(flags)
        self.live, self.saved = list(elements), None

    @_job
    def destroy(self) -> None:
        self._check_active()
        super().destroy()
        self._release_devices()

    @_job
    def shutdown(self) -> None:
        self._check_active()
        super().shutdown()
        # libvirt's guest is soon off; Nova's fixture is for ever on its way.
        self._state = fakelibvirt.VIR_DOMAIN_SHUTOFF
        self._release_devices()

    def _check_active(self) -> None:
        # Another guest may have its devices by now.
        if not self.isActive():
            raise failed("domain is not running", "OPERATION_INVALID")

    @_job
    def undefine(self) -> None:
        """Forget the definition; a guest that runs goes on without one."""
        if self.isActive():
            self._transient = True
        else:
            super().undefine()

    def managedSave(self, flags: int) -> None:
        if self.live:
            raise failed("cannot migrate a domain with <hostdev>")
        super().managedSave(flags)
        self._state = fakelibvirt.VIR_DOMAIN_SHUTOFF
        self.saved = list(self.live)

    def managedSaveRemove(self, flags: int = 0) -> None:
        super().managedSaveRemove(flags)
        self.saved = None

    @_job
    def attachDeviceFlags(self, xml: str, flags: int) -> None:
        """Add a device to the guest, its definition, or both."""
        if not xml.startswith("<hostdev"):
            super().attachDeviceFlags(xml, flags)
            return
        element = etree.fromstring(xml)
        self._check_flags(flags)
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG:
            if _find_same(self.defined, element):
                raise failed("device is already in the domain configuration")
            self.defined.append(element)
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_LIVE:
            try:
                self._take(element)
            except OSError as error:
                raise failed(
                    f"host device of {self.name()}: {error}"
                ) from error
            self.live.append(element)
            self._connection.emit(_DEVICE_ADDED, self, "hostdev0")

    @_job
    def detachDeviceFlags(self, xml: str, flags: int) -> None:
        """Ask the guest to release a device; it may keep it.

        libvirt refuses where functions share a slot of the guest.
        """
        if not xml.startswith("<hostdev"):
            super().detachDeviceFlags(xml, flags)
            return
        element = etree.fromstring(xml)
        self._check_flags(flags)
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG:
            matches = _find_same(self.defined, element)
            if not matches:
                raise failed("device not found", "DEVICE_MISSING")
            self.defined.remove(matches[0])
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_LIVE:
            self._detach_live(element)

    def _detach_live(self, element: Any) -> None:
        matches = _find_same(self.live, element)
        if not matches:
            raise failed("device not found", "DEVICE_MISSING")
        slots = [_slot(e) for e in self.live]
        if slots.count(_slot(matches[0])) > 1 and _slot(matches[0]):
            raise failed("cannot hot unplug multifunction PCI device")
        is_listening = self._state == fakelibvirt.VIR_DOMAIN_RUNNING
        if is_listening and not self.is_stubborn:
            self.live.remove(matches[0])
            self._give(matches[0])
            kind = fakelibvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED
            self._connection.emit(kind, self, "hostdev0")

    def _check_flags(self, flags: int) -> None:
        valid_flags = (
            fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG
            | fakelibvirt.VIR_DOMAIN_AFFECT_LIVE
        )
        if not flags or flags & ~valid_flags:
            raise failed("say whether the guest or its definition is meant")
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_LIVE and not self.isActive():
            raise failed("domain is not running", "OPERATION_INVALID")

    def _take(self, element: Any) -> None:
        device = _device(self._connection.root, element)
        device.prepare()
        group = device.group()
        if group not in self.groups:
            self.groups[group] = self._hold(group)

    def _give(self, element: Any) -> None:
        device = _device(self._connection.root, element)
        with contextlib.suppress(OSError):  # it may have left the host
            group = device.group()
            others = {
                _device(self._connection.root, e).group() for e in self.live
            }
            if group in self.groups and group not in others:
                os.close(self.groups.pop(group))
        device.give_back()

    def _hold(self, group: str) -> int:
        node = self._connection.root / "dev" / "vfio" / group
        handle = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def close_groups(self) -> None:
        """Close the guest's VFIO groups in this process."""
        while self.groups:
            os.close(self.groups.popitem()[1])

    def _release_devices(self) -> None:
        self.close_groups()
        for element in self.live or self.defined:
            _device(self._connection.root, element).give_back()
        self.live = []


class _Mdev:
    def __init__(self, root: Path, uuid: str) -> None:
        self._path = root / "sys/bus/mdev/devices" / uuid

    def prepare(self) -> None:
        os.stat(self._path)

    def group(self) -> str:
        return os.path.basename(os.readlink(self._path / "iommu_group"))

    def give_back(self) -> None:
        pass


class _Function:
    def __init__(self, root: Path, address: str, managed: bool) -> None:
        self._bus = root / "sys/bus/pci"
        self._path = self._bus / "devices" / address
        self._address = address
        self._managed = managed

    def prepare(self) -> None:
        os.stat(self._path)
        if self._managed and self._driver() != _VFIO:
            self._rebind(_VFIO)

    def group(self) -> str:
        if self._driver() != _VFIO and (
            self._managed or not (self._path / "vfio-dev").is_dir()
        ):
            raise OSError(errno.EINVAL, f"{self._address} is not for VFIO")
        return os.path.basename(os.readlink(self._path / "iommu_group"))

    def give_back(self) -> None:
        if self._managed and self._driver() == _VFIO:
            self._rebind("\n")

    def _driver(self) -> str:
        try:
            return os.path.basename(os.readlink(self._path / "driver"))
        except FileNotFoundError:
            return ""

    def _rebind(self, override: str) -> None:
        store(self._path / "driver_override", override)
        if self._driver():
            store(self._path / "driver/unbind", self._address)
        store(self._bus / "drivers_probe", self._address)


def store(path: Path, text: str) -> None:
    """Write once; a buffered file would try again when it is closed."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _elements(root: Any) -> list[Any]:
    hostdevs: list[Any] = root.findall("./devices/hostdev")
    return hostdevs


def _source(element: Any) -> dict[str, Any]:
    """Return where a device is on the host."""
    attributes = element.find("./source/address").attrib
    return {
        name: text if name == "uuid" else int(text, 16)
        for name, text in attributes.items()
    }


def _find_same(elements: list[Any], element: Any) -> list[Any]:
    """Return the elements of one device of the host."""
    return [other for other in elements if _source(other) == _source(element)]


def _slot(element: Any) -> tuple[str, ...]:
    """Return where the guest sees a device; nothing if libvirt chose."""
    address = element.find("./address[@type='pci']")
    if address is None:
        return ()
    return tuple(address.get(name) for name in ("domain", "bus", "slot"))


def failed(what: str, code: str = "INTERNAL_ERROR") -> Exception:
    error: Exception = fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError,
        what,
        error_code=getattr(fakelibvirt, f"VIR_ERR_{code}"),
    )
    return error


def _device(root: Path, element: Any) -> Any:
    source = _source(element)
    if element.get("type") == "mdev":
        return _Mdev(root, source["uuid"])
    parts = (source[k] for k in ("domain", "bus", "slot", "function"))
    return _Function(
        root,
        "{:04x}:{:02x}:{:02x}.{:x}".format(*parts),
        element.get("managed") == "yes",
    )


def _list_pci_controllers(definition: Any) -> list[Any]:
    """Return the PCI controllers of a definition, with addresses.

    Those without one are in the next slots of bus 0, as by libvirt.
    """
    controllers = definition.findall("./devices/controller[@type='pci']")
    indexes = {controller.get("index") for controller in controllers}
    free = (str(n) for n in itertools.count() if str(n) not in indexes)
    slots = itertools.count(8)
    for controller in controllers:
        if controller.get("index") is None:
            controller.set("index", next(free))
        if controller.get("index") != "0" and (
            controller.find("address") is None
        ):
            slot, function = divmod(next(slots), 8)
            etree.SubElement(
                controller,
                "address",
                type="pci",
                bus="0x00",
                slot=f"0x{slot:02x}",
                function=f"0x{function}",
            )
    return list(controllers)
