# SPDX-License-Identifier: Apache-2.0
"""Intel's FPGA cards under the driver that came before the kernel's own.

Layout from hosts recorded with intel-fpga-pci: the directories below
``fpga/intel-fpga-dev.N``, what ``id`` and ``afu_id`` say, and
``pr/interface_id``. Only its own programs talk to its nodes: they are not
simulated, what they do is (fpgaconf).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.fpga import Hardware, Part
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.devnodes import PLACE, CharDevice
from tests.lab.fakehost.sysfs.errnos import fail
from tests.lab.fakehost.sysfs.tree import Attr, constant
from tests.lab.fakehost.technologies.fpga.dfl_card import (
    A10,
    CLASS,
    NLB0,
    VENDOR,
)
from tests.lab.fakehost.technologies.pci_card import PciCard

NAME = "intel-fpga-pci"
#: Of its nodes: those of ports and of management engines.
PORT_MAJOR, FME_MAJOR = 244, 245


class IntelFpgaDriver(PciDriver):
    """intel-fpga-pci."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(NAME)
        self._kernel = kernel
        self._tree = kernel.tree
        self._made: dict[str, list[str]] = {}
        self.cards: set[str] = set()
        self._tree.mkdir("class/fpga")
        self._tree.mkdir("class/fpga_manager")

    def matches(self, function: PciFunction) -> bool:
        """Return whether it is one of our cards: two drivers know the ids."""
        return function.address in self.cards and super().matches(function)

    def probe(self, function: PciFunction) -> None:
        """Find the FME and the ports."""
        card = self._kernel.fpga.cards[function.address]
        made = self._made.setdefault(function.address, [])
        number = self._kernel.fpga.number("intel-fpga-dev")
        name = f"intel-fpga-dev.{number}"
        container = f"{function.path}/fpga/{name}"
        self._tree.add(f"{container}/uevent", _silent(""))
        self._tree.link(f"{container}/device", function.path)
        self._tree.link(f"{container}/subsystem", "class/fpga")
        self._tree.link(f"class/fpga/{name}", container)
        made += [f"{function.path}/fpga", f"class/fpga/{name}"]
        for part in card.parts:
            self._add_port(container, part, made)
        self._add_fme(container, card, made)

    def disconnect(self, function: PciFunction) -> None:
        """Remove everything."""
        for path in reversed(self._made.pop(function.address, [])):
            self._tree.remove(path)

    def _add_fme(
        self, container: str, card: Hardware, made: list[str]
    ) -> None:
        path = self._platform(container, "intel-fpga-fme", FME_MAJOR, made)
        number = self._kernel.fpga.number("fpga")
        manager = f"{path}/fpga_manager/fpga{number}"
        for name, value in (
            (f"{path}/ports_num", len(card.parts)),
            (f"{path}/bitstream_id", "0x123000200000129"),
            (f"{path}/bitstream_metadata", "0x1809211"),
            (f"{path}/cache_size", 0),
            (f"{path}/version", 0),
            (f"{path}/socket_id", 0),
            (f"{path}/pr/interface_id", card.interface),
            (f"{path}/pr/revision", 1),
            (f"{manager}/name", "Intel FPGA Manager"),
            (f"{manager}/state", "unknown"),
        ):
            self._tree.add(name, constant(value))
        self._tree.add(f"{manager}/uevent", _silent(""))
        self._tree.link(f"{manager}/subsystem", "class/fpga_manager")
        self._tree.link(f"class/fpga_manager/fpga{number}", manager)
        made.append(f"class/fpga_manager/fpga{number}")

    def _add_port(self, container: str, part: Part, made: list[str]) -> None:
        path = self._platform(container, "intel-fpga-port", PORT_MAJOR, made)

        def show_afu_id() -> str:
            if not part.is_enabled:
                fail(errno.EBUSY)
            return f"{part.function}\n"

        self._tree.add(f"{path}/afu_id", Attr(show_afu_id))
        for name, value in (("id", part.number), ("revision", 0), ("ltr", 1)):
            self._tree.add(f"{path}/{name}", constant(value))

    def _platform(
        self, container: str, kind: str, major: int, made: list[str]
    ) -> str:
        """Return the path of a platform device that has a node."""
        number = self._kernel.fpga.number(kind)
        name = f"{kind}.{number}"
        path = f"{container}/{name}"
        text = (
            f"MAJOR={major}\nMINOR={number}\nDEVNAME={name}\n"
            f"DRIVER={kind}\nMODALIAS=platform:{kind}\n"
        )
        self._tree.add(f"{path}/uevent", _silent(text))
        self._tree.add(f"{path}/dev", constant(f"{major}:{number}"))
        self._tree.add(f"{path}/modalias", constant(f"platform:{kind}"))
        self._tree.link(f"{path}/subsystem", "bus/platform")
        self._tree.link(f"bus/platform/devices/{name}", path)
        node = CharDevice(lambda *_: fail(errno.EINVAL))
        self._tree.add(f"{PLACE}/{name}", node)
        made += [f"bus/platform/devices/{name}", f"{PLACE}/{name}"]
        return path


def _silent(text: str) -> Attr:
    return Attr(lambda: text, lambda _: None)


@dataclass(frozen=True, kw_only=True)
class IntelFpgaCard:
    """An Arria 10 PAC under intel-fpga-pci, without VFs."""

    kind: ClassVar[str] = "intel_fpga"
    address: str
    device: int = 0x09C4
    functions: tuple[str, ...] = (NLB0,)
    interface: str = A10
    numa_node: int = 0

    def build(self, kernel: Kernel) -> None:
        """Load the driver and put the card on the bus."""
        kernel.fpga.add(
            Hardware(
                address=self.address,
                interface=self.interface,
                parts=[
                    Part(number=number, slot=self.address, function=function)
                    for number, function in enumerate(self.functions)
                ],
            )
        )
        loaded = kernel.pci.drivers.get(NAME) or IntelFpgaDriver(kernel)
        assert isinstance(loaded, IntelFpgaDriver)
        loaded.cards.add(self.address)
        loaded.ids.add((VENDOR, self.device))
        kernel.pci.register(loaded)
        PciCard(
            address=self.address,
            vendor=VENDOR,
            device=self.device,
            class_code=CLASS,
            numa_node=self.numa_node,
        ).build(kernel)
