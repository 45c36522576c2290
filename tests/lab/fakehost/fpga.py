# SPDX-License-Identifier: Apache-2.0
"""FPGAs as their drivers know them: regions, and what is loaded there.

The hardware: it keeps its function whatever driver is bound. A fake
bitstream says in its first bytes what it makes of a region, and a word
behind them may ask it to go wrong as real ones do.
"""

from __future__ import annotations

import enum
import errno
import itertools
import json
import struct
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.lab.fakehost.sysfs.errnos import Blocked, fail

#: The first 16 bytes of a green bitstream file (OPAE: bitstream.h,
#: bitstream_guid); a length and JSON follow, and then the bitstream.
GBS_GUID = b"XeonFPGA\xb7GBSv001"
#: struct axlf (XRT: xclbin.h): where its fields are, in bytes.
XCLBIN_MAGIC = b"xclbin2\0"
XCLBIN_LENGTH = 304
XCLBIN_MODE = 332
XCLBIN_INTERFACE = 336
XCLBIN_VBNV = 352
XCLBIN_UUID = 416
#: m_debug_bin, which no tool reads: it holds the directive.
XCLBIN_DEBUG = 432
XCLBIN_SECTIONS = 448
XCLBIN_SIZE = 456
#: struct axlf_section_header: kind (0 is BITSTREAM), name, offset, size.
XCLBIN_SECTION = struct.Struct("<I16s4xQQ")
#: enum XCLBIN_MODE: for a part of a card, not for all of one.
XCLBIN_PR = 1
#: How long a load with HANG waits, in seconds, unless heal() ends it.
HANG_S = 600.0


class Directive(enum.Enum):
    """Effect of loading a bitstream.

    REFUSE: no, before anything is touched. ERROR: halfway through it
    fails. SAME: it reports success, and nothing has changed. HANG: it
    never ends. VANISH: the card falls off the bus halfway.
    """

    NONE = ""
    REFUSE = "REFUSE"
    ERROR = "ERROR"
    SAME = "SAME"
    HANG = "HANG"
    VANISH = "VANISH"


@dataclass(frozen=True, slots=True)
class Payload:
    """Content of a bitstream: ``function`` is 32 hex digits."""

    function: str
    directive: Directive = Directive.NONE


def payload(function: str, directive: str = "", size: int = 4096) -> bytes:
    """Return a bitstream of ``size`` bytes as Intel's cards take it."""
    head = uuid.UUID(function).bytes + directive.encode()
    return head.ljust(size, b"\0")


def gbs(function: str, interface: str, directive: str = "") -> bytes:
    """Return a green bitstream file: header, metadata, bitstream."""
    image = {
        "magic-no": 488605312,
        "interface-uuid": str(uuid.UUID(interface)),
        "accelerator-clusters": [
            {
                "total-contexts": 1,
                "name": "stand-in",
                "accelerator-type-uuid": str(uuid.UUID(function)),
            }
        ],
    }
    text = json.dumps({"version": 1, "afu-image": image}).encode()
    length = struct.pack("<I", len(text))
    return GBS_GUID + length + text + payload(function, directive)


def xclbin(
    function: str,
    interface: str,
    directive: str = "",
    vbnv: str = "xilinx_u250_gen3x16_xdma_shell_4_1",
    size: int = 4096,
) -> bytes:
    """Return an xclbin file with one section, a bitstream's."""
    data = bytearray(size)
    struct.pack_into("<8si", data, 0, XCLBIN_MAGIC, -1)
    struct.pack_into("<Q", data, XCLBIN_LENGTH, size)
    struct.pack_into("<H", data, XCLBIN_MODE, XCLBIN_PR)
    data[XCLBIN_INTERFACE:XCLBIN_VBNV] = uuid.UUID(interface).bytes
    struct.pack_into("<64s", data, XCLBIN_VBNV, vbnv.encode())
    data[XCLBIN_UUID:XCLBIN_DEBUG] = uuid.UUID(function).bytes
    struct.pack_into("<16s", data, XCLBIN_DEBUG, directive.encode())
    struct.pack_into("<I", data, XCLBIN_SECTIONS, 1)
    start = XCLBIN_SIZE + XCLBIN_SECTION.size
    section = (0, b"bitstream", start, size - start)
    XCLBIN_SECTION.pack_into(data, XCLBIN_SIZE, *section)
    return bytes(data)


def read_payload(data: bytes) -> Payload:
    """Return what Intel's hardware makes of a bitstream."""
    if len(data) < 16:
        fail(errno.EINVAL)
    word = data[16:32].rstrip(b"\0").decode("ascii", "replace")
    return Payload(data[:16].hex(), Directive(word))


def read_gbs(data: bytes) -> tuple[str, bytes]:
    """Return a file's interface and bitstream; ValueError for no GBS."""
    if data[:16] != GBS_GUID or len(data) < 20:
        raise ValueError("not a green bitstream")
    (length,) = struct.unpack_from("<I", data, 16)
    if len(data) < 20 + length + 16:
        raise ValueError("bitstream file is too short")
    image = json.loads(data[20 : 20 + length])["afu-image"]
    return uuid.UUID(image["interface-uuid"]).hex, data[20 + length :]


def read_xclbin(data: bytes) -> tuple[str, Payload]:
    """Return a file's interface and payload; ValueError for no xclbin."""
    if data[:8] != XCLBIN_MAGIC or len(data) < XCLBIN_SIZE:
        raise ValueError("bad magic")
    (length,) = struct.unpack_from("<Q", data, XCLBIN_LENGTH)
    if length != len(data):
        raise ValueError(f"is {len(data)} bytes long, not {length}")
    word = data[XCLBIN_DEBUG:XCLBIN_SECTIONS].rstrip(b"\0").decode()
    function = data[XCLBIN_UUID:XCLBIN_DEBUG].hex()
    return data[XCLBIN_INTERFACE:XCLBIN_VBNV].hex(), Payload(
        function, Directive(word)
    )


@dataclass(kw_only=True)
class Part:
    """A region of a card, and the port or function behind which it is.

    ``is_enabled`` False is a port that a failed loading left disabled;
    ``is_open`` is a test's word that some process has it open. ``slot``
    is the PCI function whose users have it now. ``is_free_to_vfs`` is a
    port that its PF has released.
    """

    number: int
    slot: str
    function: str
    is_enabled: bool = True
    is_open: bool = False
    is_free_to_vfs: bool = False


@dataclass(frozen=True, kw_only=True)
class Programming:
    """One attempt that reached the hardware, for a judge.

    ``is_group_open`` is whether a process had the slot's group open,
    ``driver`` the name of the slot's driver.
    """

    card: str
    number: int
    slot: str
    function: str
    directive: str
    driver: str
    is_group_open: bool


@dataclass(kw_only=True)
class Hardware:
    """One card: its static part's ``interface`` and its regions."""

    address: str
    interface: str
    parts: list[Part]


@dataclass
class Fpgas:
    """Every FPGA of the host, and how often which was programmed.

    The numbers that drivers give are never used again, as no test should
    rely on them. ``read_user`` returns a function's driver and whether
    some process has its group open; ``vanish`` takes one off the bus.
    """

    read_user: Callable[[str], tuple[str, bool]]
    vanish: Callable[[str], None]
    cards: dict[str, Hardware] = field(default_factory=dict)
    log: list[Programming] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._numbers: dict[str, itertools.count[int]] = {}

    def number(self, of: str) -> int:
        """Return the next number of a kind of thing."""
        return next(self._numbers.setdefault(of, itertools.count()))

    def add(self, card: Hardware) -> Hardware:
        """Know a card; one that is known keeps what is loaded."""
        hardware = self.cards.setdefault(card.address, card)
        for part in hardware.parts:
            part.is_open = False
        return hardware

    def release(self) -> None:
        """End what hangs."""
        self.released.set()
        self.released = threading.Event()

    def load(self, card: Hardware, part: Part, new: Payload) -> bool:
        """Load a bitstream into a region; returns whether it hangs.

        Raises OSError EBUSY, EINVAL, EIO or ENODEV.
        """
        if part.is_open:
            fail(errno.EBUSY)
        if new.directive is Directive.REFUSE:
            fail(errno.EINVAL)
        driver, is_open = self.read_user(part.slot)
        self.log.append(
            Programming(
                card=card.address,
                number=part.number,
                slot=part.slot,
                function=new.function,
                directive=new.directive.value,
                driver=driver,
                is_group_open=is_open,
            )
        )
        return self._load(card, part, new)

    def _load(self, card: Hardware, part: Part, new: Payload) -> bool:
        match new.directive:
            case Directive.SAME:
                return False
            case Directive.ERROR:
                part.is_enabled = False
                fail(errno.EIO)
            case Directive.VANISH:
                part.is_enabled = False
                self.vanish(card.address)
                fail(errno.ENODEV)
            case Directive.HANG:
                part.is_enabled = False
                return True
        part.function, part.is_enabled = new.function, True
        return False


def take_away(
    remove: Callable[[], None], lock: threading.RLock, pause_s: float = 0.02
) -> None:
    """Remove what has gone by itself: users end it when they let go."""
    try:
        remove()
    except Blocked as blocked:
        resume = blocked.resume

        def later() -> None:
            while True:
                threading.Event().wait(pause_s)
                try:
                    with lock:
                        resume()
                except Blocked:
                    continue
                return

        threading.Thread(target=later, daemon=True).start()


def released_of(parts: Collection[Part]) -> list[Part]:
    """Return the ports that VFs get, in their order."""
    return sorted(
        (part for part in parts if part.is_free_to_vfs),
        key=lambda part: part.number,
    )
