# SPDX-License-Identifier: Apache-2.0
"""Nova's fake libvirt, made to depend on the (simulated) kernel.

A domain starts only if its host devices exist and nobody holds them, and
holds them while it runs, as QEMU holds a VFIO group: removing an mdev
under a running guest blocks. ``managed='yes'`` binds PCI functions to
vfio-pci and gives them back; ``managed='no'`` wants one whose own driver
is of VFIO.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

_VFIO = "vfio-pci"


class Connection(fakelibvirt.Connection):
    """A libvirt whose host is below ``root``."""

    def __init__(self, *args: Any, root: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.root = root

    def defineXML(self, xml: str) -> "Domain":
        domain = Domain(self, xml, running=False, transient=False)
        domain.written = xml
        old = self._vms.get(domain.name())
        if old is not None:
            domain.groups = old.groups  # the running guest goes on
        self._vms[domain.name()] = domain
        self._emit_lifecycle(
            domain, fakelibvirt.VIR_DOMAIN_EVENT_DEFINED, 0
        )
        return domain

    def listAllDomains(self, flags: int = 0) -> list[Any]:
        """Return the domains; flags of 0 mean all, as in libvirt."""
        if flags == 0:
            return list(self._vms.values())
        found: list[Any] = super().listAllDomains(flags)
        return found


class Domain(fakelibvirt.Domain):
    """A domain that takes its host devices from the kernel."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: list[int] = []
        #: As it was defined: the stand-in drops what it does not know.
        self.written = ""

    def createWithFlags(self, flags: int) -> None:
        try:
            for device in _hostdevs(self):
                device.prepare()
            for group in {d.group() for d in _hostdevs(self)}:
                self.groups.append(self._hold(group))
        except OSError as error:
            self._let_go()
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError,
                f"host device of {self.name()}: {error}",
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
            ) from error
        super().createWithFlags(flags)

    def destroy(self) -> None:
        super().destroy()
        self._let_go()

    def shutdown(self) -> None:
        super().shutdown()
        self._let_go()

    def _hold(self, group: str) -> int:
        node = self._connection.root / "dev" / "vfio" / group
        handle = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def _let_go(self) -> None:
        while self.groups:
            os.close(self.groups.pop())
        for device in _hostdevs(self):
            device.give_back()


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


def _hostdevs(domain: Domain) -> list[Any]:
    root = domain._connection.root
    found: list[Any] = []
    for item in etree.fromstring(domain.XMLDesc(0)).findall(
        "./devices/hostdev"
    ):
        address = item.find("./source/address").attrib
        if item.get("type") == "mdev":
            found.append(_Mdev(root, address["uuid"]))
        else:
            found.append(
                _Function(
                    root,
                    "{:04x}:{:02x}:{:02x}.{:x}".format(
                        *(
                            int(address[part], 16)
                            for part in ("domain", "bus", "slot", "function")
                        )
                    ),
                    item.get("managed") == "yes",
                )
            )
    return found
