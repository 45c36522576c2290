# SPDX-License-Identifier: Apache-2.0
"""The PCI bus: functions, and drivers bound to them.

Source: drivers/base/bus.c (bind_store, unbind_store, drivers_probe_store),
drivers/base/dd.c (device_driver_attach, __device_release_driver),
drivers/pci/pci-driver.c.
"""

from __future__ import annotations

import contextlib
import errno

from tests.lab.fakehost.buses.iommu import IommuGroups
from tests.lab.fakehost.buses.pci_attributes import (
    PciIdentity,
    attributes,
    uevent_properties,
)
from tests.lab.fakehost.buses.pci_driver import PciDriver, VfioPciDriver
from tests.lab.fakehost.buses.sriov import SriovCapability
from tests.lab.fakehost.sysfs.errnos import chain, fail
from tests.lab.fakehost.sysfs.tree import Attr, Tree, constant
from tests.lab.fakehost.sysfs.uevents import Uevents

#: Drivers a host has whatever its cards: name and managed_dma.
COMMON_DRIVERS = (("pci-stub", True), ("pcieport", True))


class PciFunction:
    """One function on the bus. Made by PciBus.add()."""

    def __init__(  # noqa: PLR0913 - the identity of a function
        self,
        bus: PciBus,
        address: str,
        identity: PciIdentity,
        *,
        bridge: str,
        group: int,
        numa_node: int = 0,
        cpulist: str = "0-1",
        physfn: PciFunction | None = None,
        multifunction: bool = False,
        boot_vga: bool = False,
        reset_methods: tuple[str, ...] = ("flr",),
    ) -> None:
        self.bus = bus
        self.address = address
        self.identity = identity
        self.bridge = bridge
        self.group = group
        self.numa_node = numa_node
        self.cpulist = cpulist
        self.physfn = physfn
        self.multifunction = multifunction
        self.boot_vga = boot_vga
        #: Words of ``reset_method``, as found when the function was.
        self.reset_methods = reset_methods
        self.path = f"devices/{bridge}/{address}"
        self.driver: PciDriver | None = None
        self.override = ""
        self.sriov: SriovCapability | None = None
        #: It does not come back from a reset; and it has not.
        self.is_dying = self.is_silent = False
        #: It has fallen off the bus, and waits for its users.
        self.is_leaving = False

    def reset(self) -> None:
        """Reset it by its first method that works; raises OSError ENOTTY.

        A bus is not reset for one of several functions
        (pci_parent_bus_reset() in drivers/pci/pci.c).
        """
        for method in self.reset_methods:
            if method != "bus" or self.bus.below(self._port) == [self]:
                self.end_reset()
                return
        fail(errno.ENOTTY)

    def end_reset(self) -> None:
        """Come back from a reset, or not."""
        self.is_silent = self.is_dying

    @property
    def _port(self) -> str:
        """Return the address of the port above, "" on a root bus."""
        name = self.bridge.rpartition("/")[2]
        return "" if name.startswith("pci") else name

    def announce(self, action: str) -> None:
        """Send a uevent of this function."""
        properties = uevent_properties(self)
        self.bus.uevents.send(action, self.path, "pci", properties)

    def bind(self, driver: PciDriver) -> None:
        """Attach ``driver``; raises OSError EBUSY or what probe says."""
        if self.driver is not None:
            fail(errno.EBUSY)
        parent = self.physfn.sriov if self.physfn else None
        if parent and not parent.autoprobe and not self.override:
            # pci_device_can_probe() in drivers/pci/pci-driver.c
            fail(errno.ENODEV)
        if not driver.managed_dma and self.bus.iommu.in_use(self.group):
            # iommu_device_use_default_domain(): a guest owns the group
            fail(errno.EBUSY)
        self.driver = driver
        try:
            driver.probe(self)
        except OSError:
            self.driver = None
            raise
        home = f"bus/pci/drivers/{driver.name}"
        self.bus.tree.link(f"{self.path}/driver", home)
        self.bus.tree.link(f"{home}/{self.address}", self.path)
        self.announce("bind")

    def unbind(self) -> None:
        """Detach the driver; may raise Blocked."""
        driver = self.driver
        if driver is None:
            return
        self.bus.tree.remove(f"{self.path}/driver")
        home = f"bus/pci/drivers/{driver.name}"
        self.bus.tree.remove(f"{home}/{self.address}")

        def finish() -> None:
            self.announce("unbind")
            self.driver = None

        chain(lambda: driver.disconnect(self), finish)

    def remove(self) -> None:
        """Take the function off the bus; may raise Blocked."""
        chain(self._remove_vfs, lambda: chain(self.unbind, self._forget))

    def _remove_vfs(self) -> None:
        if self.sriov is not None:
            self.sriov.apply(0)

    def _forget(self) -> None:
        self.bus.forget(self)


class PciBus:
    """All functions and drivers of the host."""

    def __init__(
        self, tree: Tree, uevents: Uevents, iommu: IommuGroups
    ) -> None:
        self.tree = tree
        self.uevents = uevents
        self.iommu = iommu
        self.functions: dict[str, PciFunction] = {}
        self.drivers: dict[str, PciDriver] = {}
        tree.mkdir("bus/pci/devices")
        tree.mkdir("bus/pci/slots")
        tree.add("bus/pci/drivers_probe", Attr(None, self._probe))
        tree.add("bus/pci/drivers_autoprobe", constant(1, 0o644))
        self.register(VfioPciDriver(self))
        for name, managed in COMMON_DRIVERS:
            self.register(PciDriver(name, managed_dma=managed))

    def register(self, driver: PciDriver) -> PciDriver:
        """Load ``driver`` unless it is loaded; returns the one loaded."""
        if driver.name in self.drivers:
            self.drivers[driver.name].ids |= driver.ids
            return self.drivers[driver.name]
        self.drivers[driver.name] = driver
        home = f"bus/pci/drivers/{driver.name}"
        for name, attr in driver.files(self).items():
            self.tree.add(f"{home}/{name}", attr)
        module = driver.name.replace("-", "_")
        self.tree.mkdir(f"module/{module}")
        self.tree.link(f"{home}/module", f"module/{module}")
        return driver

    def add(self, function: PciFunction) -> PciFunction:
        """Put ``function`` on the bus, unbound, and announce it."""
        root = f"devices/{function.bridge.partition('/')[0]}/uevent"
        if self.tree.find(root) is None:
            self.tree.add(root, Attr(lambda: "", lambda _: None))
        for name, attr in attributes(function).items():
            self.tree.add(f"{function.path}/{name}", attr)
        self.tree.link(f"{function.path}/subsystem", "bus/pci")
        self.tree.link(f"bus/pci/devices/{function.address}", function.path)
        if self.iommu.enabled:
            self.iommu.join(function.group, function.path)
        self.functions[function.address] = function
        function.announce("add")
        return function

    def attach(self, function: PciFunction) -> None:
        """Bind the first driver that matches, if there is one."""
        for driver in self.drivers.values():
            if driver.matches(function):
                self.try_bind(function, driver)
                return

    def try_bind(self, function: PciFunction, driver: PciDriver) -> None:
        """Bind as a bus scan does: a refusal is only logged."""
        with contextlib.suppress(OSError):
            function.bind(driver)

    def forget(self, function: PciFunction) -> None:
        """Remove all traces of an unbound function."""
        self.iommu.leave(function.group, function.path)
        self.tree.remove(f"bus/pci/devices/{function.address}")
        self.tree.remove(function.path)
        self.functions.pop(function.address, None)
        function.announce("remove")

    def below(self, port: str) -> list[PciFunction]:
        """Return the functions below a port; none for a root bus."""
        return [
            function
            for function in self.functions.values()
            if port and f"/{port}/" in f"/{function.bridge}/"
        ]

    def named(self, data: bytes) -> PciFunction:
        """Return the function a write names; raises ENODEV."""
        address = data.decode("ascii", "replace").removesuffix("\n")
        if address not in self.functions:
            fail(errno.ENODEV)
        return self.functions[address]

    def _probe(self, data: bytes) -> None:
        # bus_rescan_devices_helper(): finding no driver is no error
        function = self.named(data)
        if function.driver is None:
            self.attach(function)
