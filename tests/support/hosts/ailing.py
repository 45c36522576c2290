# SPDX-License-Identifier: Apache-2.0
"""Hosts with a card that reports errors."""

import pathlib

from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import error_counters, host_reader
from tests.hosts import build, look

# The host, two of its cards, and a VF of the first.
HOST = "l40s-vendor-vfio"
CARD, CARD_VF = "0000:3d:00.0", "0000:3d:00.4"
OTHER = "0000:3e:00.0"
WELL = b"\xde\x10\x35\x22"
GONE = b"\xff\xff\xff\xff"


def errors_of(count: int) -> str:
    return f"Undefined 0\nDLP {count}\nSDES 0\nTOTAL_ERR_FATAL {count}\n"


def put(
    root: pathlib.Path,
    address: str,
    files: dict[str, str] | None = None,
    head: bytes | None = None,
) -> None:
    """Write files of a function as the kernel does."""
    place = build.Tree.place(_tree(root), address)
    for name, text in (files or {}).items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    if head is not None:
        (place / "config").write_bytes(head + bytes(252))


def _tree(root: pathlib.Path) -> build.Tree:
    tree = build.Tree.__new__(build.Tree)
    tree.root, tree.sys = root, root / "sys"
    tree.functions = tree.sys / "bus/pci/devices"
    return tree


def find(
    root: pathlib.Path, seen_to: device_notes.ErrorBaseline | None = None
) -> dict[str, str]:
    state = look.read(root)
    reader = host_reader.HostReader(root)
    faults_by_address = error_counters.find_faults(
        reader, state.devices, seen_to
    )
    return {
        address: fault.reason for address, fault in faults_by_address.items()
    }
