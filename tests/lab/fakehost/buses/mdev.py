# SPDX-License-Identifier: Apache-2.0
"""The mediated device core: parents, types, create and remove.

Source: drivers/vfio/mdev/mdev_core.c and mdev_sysfs.c (6.1 and later, the
form with a fixed set of types per parent).
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.lab.fakehost.buses.iommu import IommuGroups
from tests.lab.fakehost.sysfs.errnos import Blocked, fail, parse_unsigned
from tests.lab.fakehost.sysfs.tree import Attr, Tree, constant
from tests.lab.fakehost.sysfs.uevents import Uevents

#: UUID_STRING_LEN of the kernel.
UUID_LENGTH = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class MdevType:
    """One type a parent offers; ``name`` None falls back to ``suffix``."""

    suffix: str
    name: str | None = None
    description: str | None = None
    device_api: str = "vfio-pci"


class MdevParent:
    """A device that registered with the core. Technologies subclass it."""

    #: Name of the driver that takes the mdevs.
    mdev_driver = "vfio_mdev"
    #: Whether removing a device in use waits (the core) or is EBUSY.
    remove_waits = True

    def __init__(
        self,
        *,
        path: str,
        prefix: str,
        subsystem: str,
        types: Sequence[MdevType],
    ) -> None:
        self.path = path
        self.prefix = prefix
        self.subsystem = subsystem
        self.types = tuple(types)
        #: Devices left, where the core counts (no get_available).
        self.count: int | None = None

    @property
    def name(self) -> str:
        """Return the device's name, as listed in class/mdev_bus."""
        return self.path.rpartition("/")[2]

    def type_path(self, kind: MdevType) -> str:
        """Return the directory of a type."""
        return f"{self.path}/mdev_supported_types/{self.prefix}-{kind.suffix}"

    def available(self, kind: MdevType) -> int:
        """Return how many more of ``kind`` can be made."""
        return self.count or 0

    def admit(self, mdev: Mdev) -> None:
        """Account for a new device; raises the errno of the probe."""

    def release(self, mdev: Mdev) -> None:
        """Stop accounting for a removed device."""

    def files(self, mdev: Mdev) -> Mapping[str, Attr]:
        """Return the vendor's attributes of a device."""
        return {}


@dataclass(kw_only=True)
class Mdev:
    """One mediated device."""

    uuid: str
    parent: MdevParent
    kind: MdevType
    group: int
    active: bool = False
    path: str = field(init=False)

    def __post_init__(self) -> None:
        self.path = f"{self.parent.path}/{self.uuid}"


class MdevCore:
    """All parents and devices of the host."""

    def __init__(
        self, tree: Tree, uevents: Uevents, iommu: IommuGroups
    ) -> None:
        self._tree = tree
        self._uevents = uevents
        self._iommu = iommu
        self.parents: dict[str, MdevParent] = {}
        self.devices: dict[str, Mdev] = {}
        tree.mkdir("bus/mdev/devices")
        tree.mkdir("bus/mdev/drivers")

    def register(self, parent: MdevParent) -> None:
        """Publish the types of ``parent`` and send an event."""
        tree = self._tree
        for kind in parent.types:
            for name, attr in self._type_files(parent, kind).items():
                tree.add(f"{parent.type_path(kind)}/{name}", attr)
            tree.mkdir(f"{parent.type_path(kind)}/devices")
        tree.link(f"class/mdev_bus/{parent.name}", parent.path)
        tree.mkdir(f"bus/mdev/drivers/{parent.mdev_driver}")
        self.parents[parent.path] = parent
        self._send_change(parent, "registered")

    def unregister(self, parent: MdevParent) -> None:
        """Remove the parent's devices and types; may raise Blocked."""
        self._tree.remove(f"class/mdev_bus/{parent.name}")
        for mdev in list(self.devices.values()):
            if mdev.parent is parent:
                if mdev.active:
                    self._hide(mdev)
                    mdev.active = False
                try:
                    self._delete(mdev)
                except Blocked:
                    raise Blocked(lambda: self.unregister(parent)) from None
        self._tree.remove(f"{parent.path}/mdev_supported_types")
        self.parents.pop(parent.path, None)
        self._send_change(parent, "unregistered")

    def _send_change(self, parent: MdevParent, state: str) -> None:
        properties = {"MDEV_STATE": state}
        self._uevents.send("change", parent.path, parent.subsystem, properties)

    def _type_files(
        self, parent: MdevParent, kind: MdevType
    ) -> dict[str, Attr]:
        files = {
            "create": Attr(
                None, lambda data: self._create(parent, kind, data)
            ),
            "device_api": constant(kind.device_api),
            "name": constant(kind.name or kind.suffix),
            "available_instances": Attr(lambda: f"{parent.available(kind)}\n"),
        }
        if kind.description is not None:
            files["description"] = constant(kind.description)
        return files

    # -- create ----------------------------------------------------------

    def _create(self, parent: MdevParent, kind: MdevType, data: bytes) -> None:
        identifier = parse_uuid(data)
        if identifier in self.devices:
            fail(errno.EEXIST)
        if self.parents.get(parent.path) is not parent:
            fail(errno.ENODEV)
        if parent.count is not None:
            if parent.count == 0:
                fail(errno.EUSERS)
            parent.count -= 1
        mdev = Mdev(
            uuid=identifier,
            parent=parent,
            kind=kind,
            group=self._iommu.allocate(),
        )
        self.devices[identifier] = mdev
        self._device_add(mdev)
        try:
            parent.admit(mdev)
        except OSError:
            self._hide(mdev)
            self._device_del(mdev)
            raise
        self._probed(mdev)

    def _device_add(self, mdev: Mdev) -> None:
        tree, path = self._tree, mdev.path
        tree.add(
            f"{path}/remove",
            Attr(None, lambda data: self._remove(mdev, data)),
        )
        tree.add(
            f"{path}/uevent",
            Attr(
                lambda: f"DRIVER={mdev.parent.mdev_driver}\n",
                lambda data: self._announce(mdev, data.decode().strip()),
            ),
        )
        tree.link(f"{path}/subsystem", "bus/mdev")
        tree.link(f"bus/mdev/devices/{mdev.uuid}", path)
        self._announce(mdev, "add")

    def _probed(self, mdev: Mdev) -> None:
        tree, path, driver = self._tree, mdev.path, mdev.parent.mdev_driver
        for name, attr in mdev.parent.files(mdev).items():
            tree.add(f"{path}/{name}", attr)
        self._iommu.join(mdev.group, path)
        vfio = f"{path}/vfio-dev/vfio{mdev.group}"
        tree.mkdir(vfio)
        self._iommu.expose(mdev.group)
        self._uevents.send("add", vfio, "vfio-dev")
        tree.link(f"{path}/driver", f"bus/mdev/drivers/{driver}")
        tree.link(f"bus/mdev/drivers/{driver}/{mdev.uuid}", path)
        self._announce(mdev, "bind")
        kind = mdev.parent.type_path(mdev.kind)
        tree.link(f"{kind}/devices/{mdev.uuid}", path)
        tree.link(f"{path}/mdev_type", kind)
        mdev.active = True

    def _announce(self, mdev: Mdev, action: str) -> None:
        # a device on the mdev bus has its driver's name and nothing else
        properties = {"DRIVER": mdev.parent.mdev_driver}
        if action == "remove":
            properties = {}
        self._uevents.send(action, mdev.path, "mdev", properties)

    # -- remove ----------------------------------------------------------

    def _remove(self, mdev: Mdev, data: bytes) -> None:
        try:
            value = parse_unsigned(data)
        except OSError:
            fail(errno.EINVAL)
        if not value:
            return
        if not mdev.active:
            fail(errno.EAGAIN)
        if not mdev.parent.remove_waits and self._iommu.in_use(mdev.group):
            fail(errno.EBUSY)
        mdev.active = False
        self._hide(mdev)
        self._delete(mdev)

    def _hide(self, mdev: Mdev) -> None:
        """Do what comes before the driver lets go.

        Links go first, so during a removal that waits for a guest the
        device's directory is there, and it is in no list any more.
        """
        kind = mdev.parent.type_path(mdev.kind)
        for path in (
            f"{mdev.path}/mdev_type",
            f"{kind}/devices/{mdev.uuid}",
            f"{mdev.path}/remove",
            f"{mdev.path}/subsystem",
            f"bus/mdev/devices/{mdev.uuid}",
        ):
            self._tree.remove(path)

    def _delete(self, mdev: Mdev) -> None:
        if self._iommu.in_use(mdev.group):
            raise Blocked(lambda: self._delete(mdev))
        driver = mdev.parent.mdev_driver
        vfio = f"{mdev.path}/vfio-dev"
        self._tree.remove(vfio)
        self._uevents.send("remove", f"{vfio}/vfio{mdev.group}", "vfio-dev")
        self._tree.remove(f"{mdev.path}/driver")
        self._tree.remove(f"bus/mdev/drivers/{driver}/{mdev.uuid}")
        self._iommu.hide(mdev.group)
        self._iommu.leave(mdev.group, mdev.path)
        mdev.parent.release(mdev)
        self._announce(mdev, "unbind")
        self._device_del(mdev)

    def _device_del(self, mdev: Mdev) -> None:
        self._tree.remove(mdev.path)
        self.devices.pop(mdev.uuid, None)
        if mdev.parent.count is not None:
            mdev.parent.count += 1
        self._announce(mdev, "remove")


def parse_uuid(data: bytes) -> str:
    """Return the UUID in lower case, as create_store() accepts it.

    36 characters, or 37 of which the last is ignored. Raises OSError
    EINVAL.
    """
    if not UUID_LENGTH <= len(data) <= UUID_LENGTH + 1:
        fail(errno.EINVAL)
    text = data[:UUID_LENGTH].decode("ascii", "replace").lower()
    try:
        parsed = str(uuid.UUID(text))
    except ValueError:
        fail(errno.EINVAL)
    if parsed != text:
        # uuid.UUID() also takes other spellings of 36 characters
        fail(errno.EINVAL)
    return parsed
