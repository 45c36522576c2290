# SPDX-License-Identifier: Apache-2.0
"""Intel's FPGA cards under the kernel's own driver, dfl-pci.

Source: drivers/fpga/dfl-pci.c (cci_pci_sriov_configure), dfl.c
(dfl_fpga_cdev_release_port, dfl_fpga_cdev_config_ports_vf), dfl-fme-pr.c
(fme_pr) and include/uapi/linux/fpga-dfl.h.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.fpga import Hardware, Part, read_payload, released_of
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.devnodes import CharDevice, Hanging, Memory
from tests.lab.fakehost.sysfs.errnos import chain, fail
from tests.lab.fakehost.technologies.fpga.dfl_tree import (
    DflTree,
    FmeFacts,
    port_key,
)
from tests.lab.fakehost.technologies.pci_card import PciCard

VENDOR = 0x8086
#: Processing accelerator.
CLASS = 0x120000
#: _IO(0xB6, 0x80), and _IOW of an int at 0xB6, 0x81 and 0x82.
PORT_PR, PORT_RELEASE, PORT_ASSIGN = 0xB680, 0x4004B681, 0x4004B682
#: struct dfl_fpga_fme_port_pr: argsz, flags, port_id, buffer_size, address.
PR = struct.Struct("=IIIIQ")
PORT = struct.Struct("=i")
#: Arria 10 PAC: its AFU NLB 0 and the interface it was built for.
NLB0 = "d8424dc4a4a3c413f89e433683f9040b"
A10 = "f64e598bea11517fa28e7bc65d885104"


class DflDriver(PciDriver):
    """dfl-pci: FME and ports of a PF, the ports of its VFs."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__("dfl-pci", sriov=True)
        self._kernel = kernel
        self._tree = DflTree(kernel)
        self._facts: dict[str, FmeFacts] = {}
        self._containers: dict[str, str] = {}

    def know(self, card: Hardware, facts: FmeFacts) -> None:
        """Know the card that will be found."""
        self._facts[card.address] = facts

    def matches(self, function: PciFunction) -> bool:
        """Return whether it is one of our cards: two drivers know the ids."""
        owner = (function.physfn or function).address
        return owner in self._facts and super().matches(function)

    def probe(self, function: PciFunction) -> None:
        """Find what the function's device feature list has."""
        container = self._tree.add_container(function)
        self._containers[function.address] = container
        card = self._card(function)
        if function.physfn is not None:
            for part in card.parts:
                if part.slot == function.address:
                    self._tree.add_port(function, container, part)
            return
        for part in card.parts:
            part.is_free_to_vfs = False
            part.slot = function.address
            self._tree.add_port(function, container, part)
        node = CharDevice(lambda *call: self._ioctl(function, *call))
        self._tree.add_fme(
            function, container, card, self._facts[card.address], node
        )

    def disconnect(self, function: PciFunction) -> None:
        """Remove everything, VFs first; may raise Blocked."""
        if function.sriov is not None and function.sriov.vfs:
            sriov = function.sriov
            chain(lambda: sriov.apply(0), lambda: self._forget(function))
        else:
            self._forget(function)

    def sriov_configure(self, function: PciFunction, number: int) -> None:
        """Make as many VFs as ports are released, or none."""
        assert function.sriov is not None
        sriov = function.sriov
        free = released_of(self._card(function).parts)
        if not number:

            def take_back() -> None:
                for part in free:
                    part.slot = function.address

            chain(lambda: sriov.apply(0), take_back)
            return
        if number != len(free):
            fail(errno.EINVAL)
        for index, part in enumerate(free):
            part.slot = sriov.address(index)
        sriov.apply(number)

    def _card(self, function: PciFunction) -> Hardware:
        pf = function.physfn or function
        return self._kernel.fpga.cards[pf.address]

    def _forget(self, function: PciFunction) -> None:
        for part in self._card(function).parts:
            self._tree.remove(port_key(function, part))
        self._tree.remove(function.address)
        self._containers.pop(function.address, None)

    # -- /dev/dfl-fme.N --------------------------------------------------

    def _ioctl(
        self, function: PciFunction, command: int, argument: int, mem: Memory
    ) -> None:
        if command == PORT_PR:
            self._program(function, argument, mem)
        elif command in (PORT_RELEASE, PORT_ASSIGN):
            (number,) = PORT.unpack(mem(argument, PORT.size))
            self._move(function, number, release=command == PORT_RELEASE)
        else:
            fail(errno.EINVAL)

    def _program(
        self, function: PciFunction, argument: int, mem: Memory
    ) -> None:
        card = self._card(function)
        size, flags, port, length, address = PR.unpack(mem(argument, PR.size))
        if size < PR.size or flags or port >= len(card.parts):
            fail(errno.EINVAL)
        bitstream = read_payload(mem(address, length))
        if self._kernel.fpga.load(card, card.parts[port], bitstream):
            raise Hanging

    def release(self, function: PciFunction, number: int) -> None:
        """Release a port to VFs, as the ioctl does."""
        self._move(function, number, release=True)

    def _move(
        self, function: PciFunction, number: int, *, release: bool
    ) -> None:
        part = self._part(function, number)
        if part.is_free_to_vfs is release or (release and part.is_open):
            fail(errno.EBUSY)
        part.is_free_to_vfs = release
        if release:
            self._tree.remove(port_key(function, part))
        else:
            part.slot = function.address
            container = self._containers[function.address]
            self._tree.add_port(function, container, part)

    def _part(self, function: PciFunction, number: int) -> Part:
        for part in self._card(function).parts:
            if part.number == number:
                return part
        fail(errno.ENODEV)


@dataclass(frozen=True, kw_only=True)
class DflCard:
    """A card under dfl-pci, by default an Arria 10 PAC.

    ``functions`` is what each of its regions holds at first, one for each
    port; ``released`` ports are VFs from the start.
    """

    kind: ClassVar[str] = "dfl"
    address: str
    device: int = 0x09C4
    vf_device: int = 0x09C5
    subsystem_device: int = 0
    functions: tuple[str, ...] = (NLB0,)
    interface: str = A10
    bitstream_id: int = 0x23000110010309
    bitstream_metadata: int = 0
    numa_node: int = 0
    released: int = 0

    def build(self, kernel: Kernel) -> None:
        """Load the driver and put the card on the bus."""
        card = kernel.fpga.add(
            Hardware(
                address=self.address,
                interface=self.interface,
                parts=[
                    Part(number=number, slot=self.address, function=function)
                    for number, function in enumerate(self.functions)
                ],
            )
        )
        loaded = kernel.pci.drivers.get("dfl-pci") or DflDriver(kernel)
        assert isinstance(loaded, DflDriver)
        loaded.ids |= {(VENDOR, self.device), (VENDOR, self.vf_device)}
        facts = FmeFacts(
            bitstream_id=self.bitstream_id,
            bitstream_metadata=self.bitstream_metadata,
        )
        loaded.know(card, facts)
        kernel.pci.register(loaded)
        PciCard(
            address=self.address,
            vendor=VENDOR,
            device=self.device,
            class_code=CLASS,
            subsystem_vendor=VENDOR if self.subsystem_device else 0,
            subsystem_device=self.subsystem_device,
            numa_node=self.numa_node,
            total_vfs=len(self.functions),
            vf_device=self.vf_device,
        ).build(kernel)
        if self.released:
            function = kernel.pci.functions[self.address]
            for number in range(self.released):
                loaded.release(function, number)
            loaded.sriov_configure(function, self.released)
