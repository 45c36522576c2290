# SPDX-License-Identifier: Apache-2.0
"""Nova's own LibvirtDriver on the simulated kernel.

libvirt lists the mdev parents and mdevs of the simulated sysfs, and Nova
creates its mdevs there.
"""

import re
import uuid as uuids
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.model import pci
from tests.functional.nova.support import harness, libvirtd
from tests.lab import fakehost

STOCK = "libvirt.LibvirtDriver"
ACCEL = harness.AccelTestBase.COMPUTE_DRIVER
NATIVE_FLAVOR = {"resources:VGPU": "1"}

A40 = "0000:41:00.0"
ON_FUNCTION = (fakehost.NvidiaGpu(address=harness.T4, model="T4"),)
ON_VFS = (fakehost.NvidiaGpu(address=A40, model="A40", enabled_vfs=4),)
# Types of 4 GiB and 8 GiB of these cards.
T4_TYPE, A40_TYPE = "nvidia-232", "nvidia-562"

_PARENT = """<device><name>{name}</name><path>/sys/devices/{address}</path>
<parent>computer</parent><driver><name>nvidia</name></driver>
<capability type='pci'><domain>{numbers[0]}</domain><bus>{numbers[1]}</bus>
<slot>{numbers[2]}</slot><function>{numbers[3]}</function>
<product id='0x1eb8'>GPU</product><vendor id='0x10de'>NVIDIA</vendor>
<capability type='mdev_types'>{types}</capability>
<iommuGroup number='40'/><numa node='0'/></capability></device>"""
_FUNCTION = """<device><name>{name}</name><path>/sys/devices/{address}</path>
<parent>computer</parent><driver><name>vfio-pci</name></driver>
<capability type='pci'><domain>{numbers[0]}</domain><bus>{numbers[1]}</bus>
<slot>{numbers[2]}</slot><function>{numbers[3]}</function>
<product id='{product}'>card</product><vendor id='{vendor}'>maker</vendor>
{capability}<iommuGroup number='40'/><numa node='0'/></capability></device>"""
_TYPE = """<type id='{id}'><name>{name}</name><deviceAPI>vfio-pci</deviceAPI>
<availableInstances>{available}</availableInstances></type>"""
_MDEV = """<device><name>{name}</name><path>/sys/devices/{uuid}</path>
<parent>{parent}</parent><driver><name>vfio_mdev</name></driver>
<capability type='mdev'><type id='{kind}'/><uuid>{uuid}</uuid>
<iommuGroup number='12'/></capability></device>"""


# Autostart of mdevs by uuid, by the root of their host: mdevctl's files.
DEFINED: dict[str, dict[str, bool]] = {}


class _NodeDevice:
    """Node device; an mdev that was defined has an entry in ``defined``."""

    def __init__(
        self, xml: str, uuid: str = "", defined: dict[str, bool] | None = None
    ) -> None:
        """Use the XML of the active device, empty for an inactive one."""
        self._xml, self._uuid = xml, uuid
        self._defined = {} if defined is None else defined

    def XMLDesc(self, _flags: int) -> str:
        return self._xml

    def isPersistent(self) -> int:
        return int(self._uuid in self._defined)

    def isActive(self) -> int:
        return int(bool(self._xml))

    def undefine(self, _flags: int) -> int:
        del self._defined[self._uuid]
        return 0

    def autostart(self) -> int:
        return int(self._defined[self._uuid])

    def setAutostart(self, autostart: bool) -> int:
        self._defined[self._uuid] = autostart
        return 0


class Connection(libvirtd.Connection):
    """A libvirt with the mdev parents and mdevs of the simulated kernel."""

    #: Of the mdevs that Nova's driver creates.
    new_uuids: Iterator[str] = iter(lambda: str(uuids.uuid4()), "")

    def listDevices(self, cap: str, flags: int) -> Any:
        if cap == "mdev_types":
            return list(self._list_parents())
        if cap == "mdev":
            return [*self._list_mdevs(), *self._list_inactive()]
        return super().listDevices(cap, flags)

    def listAllDevices(self, flags: int) -> list[Any]:
        """Return the PCI functions of the simulated kernel."""
        if not flags & fakelibvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV:
            return []
        bus = self.root / "sys/bus/pci/devices"
        return [
            fakelibvirt.NodeDevice(self, xml=_describe_function(path))
            for path in sorted(bus.iterdir())
        ]

    def nodeDeviceLookupByName(self, name: str) -> Any:
        if name.startswith("mdev_"):
            xml = self._list_mdevs().get(name, "")
            if not xml and name not in self._list_inactive():
                raise libvirtd.failed(f"no {name}", "NO_NODE_DEVICE")
            uuid = name.removeprefix("mdev_")[:36].replace("_", "-")
            return _NodeDevice(xml, uuid, self._defined())
        if path := self._list_parents().get(name):
            return _NodeDevice(_describe_parent(name, path))
        return super().nodeDeviceLookupByName(name)

    def _defined(self) -> dict[str, bool]:
        """Return autostart of the defined mdevs of this host, by uuid."""
        return DEFINED.setdefault(str(self.root), {})

    def _list_inactive(self) -> list[str]:
        """Return the names of mdevs that are defined and do not exist."""
        existing = "".join(self._list_mdevs())
        names = (f"mdev_{u.replace('-', '_')}" for u in self._defined())
        return [name for name in names if name not in existing]

    def nodeDeviceDefineXML(self, text: str, _flags: int) -> _NodeDevice:
        uuid = etree.fromstring(text).findtext(".//uuid")
        defined = self._defined()
        defined[uuid] = False
        return _NodeDevice(text, uuid, defined)

    def create_mdev(self, parent: str, kind: str, uuid: str) -> None:
        """Create an mdev as mdevctl does."""
        types = self._list_parents()[parent] / "mdev_supported_types"
        libvirtd.store(types / kind / "create", uuid)
        self._defined()[uuid] = True  # as Nova defines it

    def _list_parents(self) -> Mapping[str, Path]:
        bus = self.root / "sys/class/mdev_bus"
        paths = sorted(bus.iterdir()) if bus.is_dir() else []
        return {pci.nodedev_name(path.name): path for path in paths}

    def _list_mdevs(self) -> Mapping[str, str]:
        """Return the XML of mdevs by their names in libvirt."""
        bus = self.root / "sys/bus/mdev/devices"
        mdevs = {}
        for path in sorted(bus.iterdir()) if bus.is_dir() else []:
            parent = pci.nodedev_name(path.resolve().parent.name)
            name = f"mdev_{path.name}_{parent.removeprefix('pci_')}"
            name = name.replace("-", "_")
            mdevs[name] = _MDEV.format(
                name=name,
                uuid=path.name,
                parent=parent,
                kind=(path / "mdev_type").resolve().name,
            )
        return mdevs


def _describe_parent(name: str, path: Path) -> str:
    types = (path / "mdev_supported_types").iterdir()
    return _PARENT.format(
        name=name,
        address=path.name,
        numbers=[int(part, 16) for part in re.split("[:.]", path.name)],
        types="".join(
            _TYPE.format(
                id=kind.name,
                name=(kind / "name").read_text().strip(),
                available=(kind / "available_instances").read_text().strip(),
            )
            for kind in sorted(types)
        ),
    )


def _describe_function(path: Path) -> str:
    """Return a function's XML, with its capability of SR-IOV."""
    capability = ""
    if (path / "physfn").exists():
        pf = (path / "physfn").resolve().name
        parts = zip(
            ("domain", "bus", "slot", "function"),
            re.split("[:.]", pf),
            strict=True,
        )
        address = " ".join(f"{name}='0x{text}'" for name, text in parts)
        capability = (
            f"<capability type='phys_function'><address {address}/>"
            "</capability>"
        )
    elif (path / "sriov_totalvfs").exists():
        capability = "<capability type='virt_functions'/>"
    return _FUNCTION.format(
        name=pci.nodedev_name(path.name),
        address=path.name,
        numbers=[int(part, 16) for part in re.split("[:.]", path.name)],
        vendor=(path / "vendor").read_text().strip(),
        product=(path / "device").read_text().strip(),
        capability=capability,
    )


def _create_mdev(
    driver: Any, parent: str, kind: str, uuid: str | None = None
) -> str:
    """Create an mdev for Nova, and return its uuid."""
    connection = driver._host.get_connection()
    name = uuid or next(connection.new_uuids)
    connection.create_mdev(parent, kind, name)
    return str(name)


class StockTestBase(harness.AccelTestBase):
    """Hosts that are switched between Nova's driver and this one."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.driver.LibvirtDriver._create_mdev",
                _create_mdev,
            )
        )

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.__class__ = Connection
        return connection

    def use(self, driver: str, *types: str) -> None:
        """Set the driver and Nova's own mdev types for the next start."""
        self.flags(compute_driver=driver)
        self.flags(enabled_mdev_types=list(types), group="devices")

    def switch(self, driver: str, *types: str) -> Any:
        """Return nova-compute of host1, restarted under another driver."""
        self.use(driver, *types)
        return self.restart()

    def native_providers(self) -> dict[str, dict[str, Any]]:
        """Return Nova's own mdev providers by their names' suffixes."""
        return {
            record["name"].removeprefix("host1_"): record | {"uuid": uuid}
            for uuid, record in self.providers().items()
            if record["name"].startswith("host1_pci_")
        }

    def errors_about(self, words: str) -> list[str]:
        """Return the log's errors that have these words."""
        return [
            line
            for line in self.messages().splitlines()
            if words in line and " ERROR " in line
        ]
