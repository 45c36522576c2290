# SPDX-License-Identifier: Apache-2.0
"""AMD's Alveo cards: a management function and the user's.

Source: XRT, src/runtime_src/core/pcie/driver/linux (mgmt-sysfs.c,
xocl_sysfs.c, icap.c). What the user function shows as loaded is what its
driver remembers: it is gone with the driver.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.fpga import Hardware, Part
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.tree import Attr, constant
from tests.lab.fakehost.technologies.pci_card import PciCard

VENDOR = 0x10EE
CLASS = 0x120000
SUBSYSTEM = 0x000E
#: Of a U250's shell, as recorded; the interface is made up.
LOGIC = "12c8fafb0632499db1c0c6676271b8a6"
INTERFACE = "08cd2b8e0d6c4b8f9a6a3e2e4b4d5b8d"
VBNV = "xilinx_u250_gen3x16_xdma_shell_4_1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The shell of a card, which only flashing changes."""

    board: str
    vbnv: str
    logic: str


class AlveoDriver(PciDriver):
    """xclmgmt or xocl."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(name)
        self._kernel = kernel
        self._tree = kernel.tree
        self.shells: dict[str, Shell] = {}
        self._made: dict[str, set[str]] = {}

    def probe(self, function: PciFunction) -> None:
        """Make the attributes."""
        card, shell = self._card(function), self.shells[function.address]
        instance = self._instance(function)
        files = {
            "board_name": constant(shell.board),
            "interface_uuids": constant(card.interface),
            "logic_uuids": constant(shell.logic),
            "ready": constant("0x1" if self.name == "xocl" else 1),
            "dev_offline": constant(0),
            "link_speed": constant(3),
            "link_width": constant(16),
            "userbar": constant(0),
            "versal": constant(0),
        }
        if self.name == "xocl":
            files |= self._of_user(card, instance, shell)
        else:
            files |= self._of_mgmt(instance, shell)
        for name, attr in files.items():
            self._tree.add(f"{function.path}/{name}", attr)
        # directories of a few files go as a whole
        made = {name.partition("/")[0] for name in files}
        self._made[function.address] = made

    def disconnect(self, function: PciFunction) -> None:
        """Remove the attributes; the user's driver forgets the xclbin."""
        names = self._made.pop(function.address, set())
        for name in names:
            self._tree.remove(f"{function.path}/{name}")
        if self.name == "xocl":
            self._card(function).parts[0].function = ""

    def _card(self, function: PciFunction) -> Hardware:
        return self._kernel.fpga.cards[f"{function.address[:-1]}0"]

    @staticmethod
    def _instance(function: PciFunction) -> int:
        """Return XOCL_DEV_ID(): domain, bus and function in one."""
        domain, bus, rest = function.address.split(":")
        slot, number = rest.split(".")
        low = int(slot, 16) << 3 | int(number)
        return int(domain, 16) << 16 | int(bus, 16) << 8 | low

    def _of_user(
        self, card: Hardware, instance: int, shell: Shell
    ) -> dict[str, Attr]:
        def show() -> str:
            function = card.parts[0].function
            return f"{uuid.UUID(function)}\n" if function else "\n"

        return {
            "xclbinuuid": Attr(show),
            "user_pf": constant(b""),
            "kdsstat": Attr(
                lambda: f"xclbin:\t\t\t{show()}outstanding execs:\t0\n"
            ),
            "mailbox_connect_state": constant("0x3"),
            "nodma": constant(0),
            "p2p_enable": constant(0, 0o644),
            "host_mem_size": constant(0),
            "shutdown": constant(0, 0o644),
            f"rom.u.{instance}/VBNV": constant(shell.vbnv),
            f"icap.u.{instance}/idcode": constant("0x14b57093"),
        }

    def _of_mgmt(self, instance: int, shell: Shell) -> dict[str, Attr]:
        return {
            "mgmt_pf": constant(b""),
            "instance": constant(instance),
            "flash_type": constant("spi"),
            "mfg": constant(0),
            "recovery": constant(0),
            "error": constant(""),
            "mig_calibration": constant(1),
            "rp_program": constant(0, 0o644),
            "cache_xclbin": constant(0, 0o644),
            "mgmt_reset": Attr(None, lambda _: None),
            "sbr_toggle": Attr(None, lambda _: None),
            f"rom.m.{instance}/VBNV": constant(shell.vbnv),
            f"rom.m.{instance}/timestamp": constant(0),
            f"rom.m.{instance}/FPGA": constant(""),
        }


@dataclass(frozen=True, kw_only=True)
class AlveoCard:
    """A card, by default a U250; ``address`` is that of function 0.

    ``function`` is the uuid of the xclbin that is loaded at first, in 32
    digits, empty for none.
    """

    kind: ClassVar[str] = "alveo"
    address: str
    device: int = 0x5004
    user_device: int = 0x5005
    board: str = "u250"
    vbnv: str = VBNV
    interface: str = INTERFACE
    logic: str = LOGIC
    function: str = ""
    numa_node: int = 0

    def build(self, kernel: Kernel) -> None:
        """Load both drivers and put both functions on the bus."""
        user = f"{self.address[:-1]}1"
        kernel.fpga.add(
            Hardware(
                address=self.address,
                interface=self.interface,
                parts=[Part(number=0, slot=user, function=self.function)],
            )
        )
        shell = Shell(board=self.board, vbnv=self.vbnv, logic=self.logic)
        for name, address, device in (
            ("xclmgmt", self.address, self.device),
            ("xocl", user, self.user_device),
        ):
            driver = kernel.pci.drivers.get(name) or AlveoDriver(kernel, name)
            assert isinstance(driver, AlveoDriver)
            driver.ids.add((VENDOR, device))
            driver.shells[address] = shell
            kernel.pci.register(driver)
            PciCard(
                address=address,
                vendor=VENDOR,
                device=device,
                class_code=CLASS,
                subsystem_vendor=VENDOR,
                subsystem_device=SUBSYSTEM,
                numa_node=self.numa_node,
                multifunction=True,
            ).build(kernel)
