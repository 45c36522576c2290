# SPDX-License-Identifier: Apache-2.0
"""The devices that the kernel's dfl drivers make of an FPGA card.

Source: drivers/fpga/dfl.c, dfl-fme-main.c, dfl-fme-pr.c, dfl-afu-main.c and
Documentation/ABI/testing/sysfs-platform-dfl-{fme,port}. Numbers are those
of the whole host, not of a card.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.fpga import Hardware, Part
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.devnodes import PLACE, CharDevice
from tests.lab.fakehost.sysfs.errnos import fail
from tests.lab.fakehost.sysfs.tree import Attr, constant

#: Given to the driver at load time, as to any that asks for no number.
MAJOR = 239


@dataclass(frozen=True, slots=True, kw_only=True)
class FmeFacts:
    """Attributes of a card's management engine."""

    bitstream_id: int
    bitstream_metadata: int


class DflTree:
    """Makes and removes the devices of cards."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._tree = kernel.tree
        #: Where each thing was put: paths and links, by what they are of.
        self._made: dict[str, list[str]] = {}
        for kind in ("fpga_region", "fpga_manager", "fpga_bridge"):
            self._tree.mkdir(f"class/{kind}")
        for name in ("dfl-fme", "dfl-port"):
            self._tree.mkdir(f"bus/platform/drivers/{name}")

    def add_container(self, function: PciFunction) -> str:
        """Return the path of a function's own region, made."""
        path = self._region(
            function.address, f"{function.path}/fpga_region", None
        )
        self._tree.link(f"{path}/device", function.path)
        return path

    def add_fme(
        self,
        function: PciFunction,
        container: str,
        card: Hardware,
        facts: FmeFacts,
        node: CharDevice,
    ) -> None:
        """Make a card's FME, and a region below it for each port."""
        number = self._kernel.fpga.number("dfl-fme")
        path = self._platform(
            function.address, container, "dfl-fme", number, node
        )
        for name, value in (
            ("ports_num", len(card.parts)),
            ("bitstream_id", f"0x{facts.bitstream_id:x}"),
            ("bitstream_metadata", f"0x{facts.bitstream_metadata:x}"),
            ("cache_size", 0),
            ("fabric_version", 0),
            ("socket_id", 0),
        ):
            self._tree.add(f"{path}/{name}", constant(value))
        self._add_manager(function.address, f"{path}/dfl-fme-mgr.{number}")
        for part in card.parts:
            number = self._kernel.fpga.number("dfl-fme-region")
            self._add_bridge(
                function.address, f"{path}/dfl-fme-bridge.{number}", part
            )
            self._region(
                function.address,
                f"{path}/dfl-fme-region.{number}/fpga_region",
                card.interface,
            )

    def add_port(
        self, function: PciFunction, container: str, part: Part
    ) -> None:
        """Make a port of a function."""
        number = self._kernel.fpga.number("dfl-port")
        node = CharDevice(lambda *_: fail(errno.EINVAL))
        owner = port_key(function, part)
        path = self._platform(owner, container, "dfl-port", number, node)

        def show_afu_id() -> str:
            if not part.is_enabled:
                fail(errno.EBUSY)
            return f"{part.function}\n"

        self._tree.add(f"{path}/afu_id", Attr(show_afu_id))
        for name, value in (
            ("id", part.number),
            ("power_state", "0x0"),
            ("userclk_freqsts", "0x1001000000000007"),
        ):
            self._tree.add(f"{path}/{name}", constant(value))
        for name in ("ltr", "ap1_event", "ap2_event"):
            self._tree.add(f"{path}/{name}", constant(0, 0o644))
        self._tree.add(f"{path}/userclk_freqcmd", Attr(None, lambda _: None))
        for name in ("errors", "first_error", "first_malformed_req"):
            self._tree.add(f"{path}/errors/{name}", constant("0x0"))

    def remove(self, owner: str) -> None:
        """Remove what was made under a name, newest first."""
        for path in reversed(self._made.pop(owner, [])):
            self._tree.remove(path)
            if path.rpartition("/")[2].startswith(("dfl-fme.", "dfl-port.")):
                self._kernel.uevents.send("remove", path, "platform")

    def _platform(
        self,
        owner: str,
        container: str,
        kind: str,
        number: int,
        node: CharDevice,
    ) -> str:
        """Return the path of a platform device that has a node."""
        name = f"{kind}.{number}"
        path = f"{container}/{name}"
        minor = self._kernel.fpga.number("dfl-minor")
        lines = (
            f"DRIVER={kind}",
            f"MODALIAS=platform:{kind}",
            f"MAJOR={MAJOR}",
            f"MINOR={minor}",
            f"DEVNAME={name}",
        )
        text = "".join(f"{line}\n" for line in lines)
        self._tree.add(f"{path}/uevent", Attr(lambda: text, lambda _: None))
        self._tree.add(f"{path}/dev", constant(f"{MAJOR}:{minor}"))
        self._tree.add(f"{path}/modalias", constant(f"platform:{kind}"))
        self._tree.link(f"{path}/subsystem", "bus/platform")
        self._tree.link(f"{path}/driver", f"bus/platform/drivers/{kind}")
        listed = f"bus/platform/devices/{name}"
        self._tree.link(listed, path)
        self._tree.add(f"{PLACE}/{name}", node)
        self._keep(owner, listed, f"{PLACE}/{name}", path)
        self._kernel.uevents.send("add", path, "platform")
        return path

    def _region(
        self, owner: str, directory: str, interface: str | None
    ) -> str:
        """Return the path of a region; a container has no interface."""
        number = self._kernel.fpga.number("region")
        path = f"{directory}/region{number}"

        def show_compat_id() -> str:
            if interface is None:
                fail(errno.ENOENT)
            return f"{interface}\n"

        self._tree.add(f"{path}/compat_id", Attr(show_compat_id))
        self._classed(owner, path, "fpga_region")
        self._keep(owner, directory)
        return path

    def _add_manager(self, owner: str, place: str) -> None:
        number = self._kernel.fpga.number("fpga")
        path = f"{place}/fpga_manager/fpga{number}"
        for name, value in (
            ("name", "DFL FME FPGA Manager"),
            ("state", "unknown"),
        ):
            self._tree.add(f"{path}/{name}", constant(value))
        self._tree.add(f"{path}/status", constant(b""))
        self._classed(owner, path, "fpga_manager")

    def _add_bridge(self, owner: str, place: str, part: Part) -> None:
        number = self._kernel.fpga.number("br")
        path = f"{place}/fpga_bridge/br{number}"

        def show_state() -> str:
            return "enabled\n" if part.is_enabled else "disabled\n"

        self._tree.add(f"{path}/name", constant("DFL FPGA FME Bridge"))
        self._tree.add(f"{path}/state", Attr(show_state))
        self._classed(owner, path, "fpga_bridge")

    def _classed(self, owner: str, path: str, kind: str) -> None:
        listed = f"class/{kind}/{path.rpartition('/')[2]}"
        self._tree.add(f"{path}/uevent", Attr(lambda: "", lambda _: None))
        self._tree.link(f"{path}/subsystem", f"class/{kind}")
        self._tree.link(listed, path)
        self._keep(owner, listed)

    def _keep(self, owner: str, *paths: str) -> None:
        self._made.setdefault(owner, []).extend(paths)


def port_key(function: PciFunction, part: Part) -> str:
    """Return the name under which a function's port is made."""
    return f"{function.address}/{part.number}"
