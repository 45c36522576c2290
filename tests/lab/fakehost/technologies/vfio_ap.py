# SPDX-License-Identifier: Apache-2.0
"""s390 crypto adapters: a parent off the PCI bus, counted by the core.

Source: drivers/s390/crypto/vfio_ap_ops.c. The matrix of adapters and
domains is not simulated: only the life of the devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.mdev import MdevParent, MdevType
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.tree import Attr

PATH = "devices/vfio_ap/matrix"
#: AP_DOMAINS * AP_DEVICES
INSTANCES = 65536


class MatrixParent(MdevParent):
    """The one matrix device; full is EUSERS."""

    mdev_driver = "vfio_ap_mdev"


@dataclass(frozen=True, kw_only=True)
class VfioAp:
    """The vfio_ap driver, loaded."""

    kind: ClassVar[str] = "vfio_ap"
    instances: int = INSTANCES

    def build(self, kernel: Kernel) -> None:
        """Make the matrix device and register it."""
        parent = MatrixParent(
            path=PATH,
            prefix="vfio_ap",
            subsystem="matrix",
            types=[
                MdevType(
                    suffix="passthrough",
                    name="VFIO AP Passthrough Device",
                    device_api="vfio-ap",
                )
            ],
        )
        parent.count = self.instances
        tree = kernel.tree
        tree.add(f"{PATH}/uevent", Attr(lambda: "", lambda _: None))
        tree.link(f"{PATH}/subsystem", "bus/matrix")
        tree.link("bus/matrix/devices/matrix", PATH)
        kernel.uevents.send("add", PATH, "matrix")
        kernel.mdev.register(parent)
