# SPDX-License-Identifier: Apache-2.0
"""The kernel's sample driver mtty: one parent whose ports are shared.

Source: samples/vfio-mdev/mtty.c: 24 ports, type mtty-1 costs one of them
and mtty-2 two; a device without ports left is ENOSPC.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.mdev import Mdev, MdevParent, MdevType
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import fail
from tests.lab.fakehost.sysfs.tree import Attr, constant

PATH = "devices/virtual/mtty/mtty"
#: MAX_MTTYS
PORTS = 24
TYPES = (
    MdevType(suffix="1", name="Single port serial"),
    MdevType(suffix="2", name="Dual port serial"),
)


class MttyParent(MdevParent):
    """The parent; a type's suffix is what it costs."""

    mdev_driver = "mtty"

    def __init__(self, ports: int) -> None:
        super().__init__(
            path=PATH, prefix="mtty", subsystem="mtty", types=TYPES
        )
        self._free = ports

    def available(self, kind: MdevType) -> int:
        """Return free ports over the ports of the type."""
        return self._free // int(kind.suffix)

    def admit(self, mdev: Mdev) -> None:
        """Take the ports; ENOSPC when there are too few."""
        cost = int(mdev.kind.suffix)
        if cost > self._free:
            fail(errno.ENOSPC)
        self._free -= cost

    def release(self, mdev: Mdev) -> None:
        """Give the ports back."""
        self._free += int(mdev.kind.suffix)

    def files(self, mdev: Mdev) -> Mapping[str, Attr]:
        """Return the sample's one attribute."""
        text = f"This is MDEV {mdev.uuid}"
        return {"vendor/sample_mdev_dev": constant(text)}


@dataclass(frozen=True, kw_only=True)
class Mtty:
    """The mtty driver, loaded."""

    kind: ClassVar[str] = "mtty"
    ports: int = PORTS

    def build(self, kernel: Kernel) -> None:
        """Make the device and register it."""
        tree = kernel.tree
        tree.add(f"{PATH}/uevent", Attr(lambda: "", lambda _: None))
        tree.link(f"{PATH}/subsystem", "class/mtty")
        tree.link("class/mtty/mtty", PATH)
        tree.mkdir("module/mtty")
        kernel.uevents.send("add", PATH, "mtty")
        kernel.mdev.register(MttyParent(self.ports))
