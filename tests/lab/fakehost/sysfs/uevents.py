# SPDX-License-Identifier: Apache-2.0
"""Uevents: recorded always, sent over netlink only in a namespace.

Formats: the kernel's (lib/kobject_uevent.c: ``ACTION@DEVPATH`` and
NUL-terminated ``KEY=VALUE``) on multicast group 1, and libudev's
(systemd, src/libsystemd/sd-device/device-monitor.c) on group 2, where
udevd would repeat it; there is no udevd in the namespace. libudev believes
only those of group 2, for the first kind must come from the kernel itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

#: linux/netlink.h
NETLINK_KOBJECT_UEVENT = 15
GROUP_KERNEL = 1
GROUP_UDEV = 2
#: UDEV_MONITOR_MAGIC of libudev, sent in network byte order.
LIBUDEV_MAGIC = 0xFEEDCAFE
LIBUDEV_HEADER = struct.Struct("=8sIIIIIIII")
#: Events kept for inspection.
KEPT = 10000
_U32 = 0xFFFFFFFF
_MURMUR = 0x5BD1E995


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """One event as a listener would see it."""

    seqnum: int
    action: str
    devpath: str
    subsystem: str
    properties: Mapping[str, str]


class Uevents:
    """The kernel's event source."""

    def __init__(self, *, netlink: bool = False) -> None:
        self.log: deque[Uevent] = deque(maxlen=KEPT)
        self.seqnum = 1000
        self._socket: socket.socket | None = None
        if netlink:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT
            )
            self._socket.bind((0, 0))

    def send(
        self,
        action: str,
        path: str,
        subsystem: str,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Record the event and multicast it; ``path`` has no slash."""
        self.seqnum += 1
        event = Uevent(
            seqnum=self.seqnum,
            action=action,
            devpath="/" + path,
            subsystem=subsystem,
            properties=dict(properties or {}),
        )
        self.log.append(event)
        if self._socket is not None:
            for group, message in (
                (GROUP_KERNEL, kernel_message(event)),
                (GROUP_UDEV, libudev_message(event)),
            ):
                # ECONNREFUSED: no process listens to this group.
                with contextlib.suppress(ConnectionRefusedError):
                    self._socket.sendto(message, (0, group))


def _body(event: Uevent) -> bytes:
    pairs = {
        "ACTION": event.action,
        "DEVPATH": event.devpath,
        "SUBSYSTEM": event.subsystem,
        "SEQNUM": str(event.seqnum),
        **event.properties,
    }
    return b"".join(f"{k}={v}\0".encode() for k, v in pairs.items())


def kernel_message(event: Uevent) -> bytes:
    """Return the message the kernel would multicast."""
    head = f"{event.action}@{event.devpath}\0".encode()
    return head + _body(event)


def libudev_message(event: Uevent) -> bytes:
    """Return the message udevd would multicast afterwards."""
    body = _body(event) + b"USEC_INITIALIZED=1\0TAGS=:seat:\0"
    size = LIBUDEV_HEADER.size
    header = LIBUDEV_HEADER.pack(
        b"libudev\0",
        socket.htonl(LIBUDEV_MAGIC),
        size,
        size,
        len(body),
        socket.htonl(murmur2(event.subsystem.encode())),
        0,
        0,
        0,
    )
    return header + body


def murmur2(data: bytes) -> int:
    """Return MurmurHash2 with seed 0: libudev's subsystem filter."""
    value = len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        word = word * _MURMUR & _U32
        word = (word ^ word >> 24) * _MURMUR & _U32
        value = (value * _MURMUR & _U32) ^ word
    if whole < len(data):
        tail = int.from_bytes(data[whole:], "little")
        value = (value ^ tail) * _MURMUR & _U32
    value = (value ^ value >> 13) * _MURMUR & _U32
    return value ^ value >> 15
