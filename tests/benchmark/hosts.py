# SPDX-License-Identifier: Apache-2.0
"""One host of many GPUs, as a directory tree that libudev reads too."""

import os
import pathlib
import uuid
from typing import Any

from nova_accel.model import names
from tests.hosts import build

# Eight A40s, each with 32 VFs of 24 types: what a full chassis has.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
_GIB = 1024
TYPES = tuple(
    (str(555 + n), f"NVIDIA A40-{size}{series}", size)
    for n, (size, series) in enumerate(
        [(size, "Q") for size in _SIZES]
        + [(size, "A") for size in _SIZES]
        + [(1, "B"), (2, "B"), (4, "C"), (8, "C")]
    )
)
MOST = 32


def describe(gpus: int, vfs: int, types: int) -> dict[str, Any]:
    """Return the description of a host; see ``tests.hosts.build``."""
    chosen = TYPES[:types]
    cards = [f"0000:{0x10 + 0x10 * n:02x}:00.0" for n in range(gpus)]
    return {
        "functions": [
            {
                "address": address,
                "id": "10de:2235",
                "class": "030200",
                "driver": "nvidia",
                "numa": number % 2,
                "group": 100 * number,
                "vfs": {
                    "total": 32,
                    "count": vfs,
                    "offset": 4,
                    "driver": "nvidia",
                    "first_group": 100 * number + 1,
                },
            }
            for number, address in enumerate(cards)
        ],
        "parents": [
            {
                "on": [
                    build.vf_address(address, 4 + n)
                    for address in cards
                    for n in range(vfs)
                ],
                "prefix": "nvidia",
                "types": [
                    [
                        type_id,
                        label,
                        1,
                        [size * _GIB, min(MOST, 48 // size)],
                    ]
                    for type_id, label, size in chosen
                ],
            }
        ],
    }


def parents(description: dict[str, Any]) -> list[str]:
    """Return the addresses of the host's mdev parents."""
    return [str(name) for name in description["parents"][0]["on"]]


def fill(description: dict[str, Any], root_uuid: str) -> dict[str, Any]:
    """Return a description with a vGPU of the first type on each VF.

    :param root_uuid: of the compute node, which its uuids depend on.
    """
    cards = [facts["address"] for facts in description["functions"]]
    vfs = parents(description)
    each = len(vfs) // len(cards)
    type_id = description["parents"][0]["types"][0][0]
    mdevs = [
        {
            "uuid": names.mdev_uuid(
                names.provider_uuid(root_uuid, cards[number // each]), vf
            ),
            "parent": vf,
            "type": f"nvidia-{type_id}",
        }
        for number, vf in enumerate(vfs)
    ]
    return description | {"mdevs": mdevs}


def make(description: dict[str, Any], root: pathlib.Path) -> None:
    """Make the host's tree, with what libudev and libvirt look for."""
    build.build(description, root)
    sys = root / "sys"
    (sys / "kernel").mkdir(exist_ok=True)
    (sys / "kernel/uevent_seqnum").write_text("1\n")
    for link in sorted((sys / "bus/pci/devices").iterdir()):
        place = link.resolve()
        facts = {
            "PCI_CLASS": "30200",
            "PCI_ID": "10DE:2235",
            "PCI_SLOT_NAME": link.name,
        }
        driver = place / "driver"
        if driver.exists():
            facts["DRIVER"] = os.path.basename(os.readlink(driver))
        (place / "uevent").write_text(
            "".join(f"{name}={value}\n" for name, value in facts.items())
        )
        # A header of type 0, "no bridge" (PCI Local Bus Specification 6.1).
        (place / "config").write_bytes(bytes(64))
        _link(place / "subsystem", sys / "bus/pci")


def toggle_mdev(root: pathlib.Path, vf: str) -> None:
    """Make a vGPU of a VF's first type, or remove it."""
    mdev = str(uuid.uuid5(uuid.NAMESPACE_DNS, vf))
    parent = (root / "sys/bus/pci/devices" / vf).resolve()
    device, index = parent / mdev, root / "sys/bus/mdev/devices"
    if device.exists():
        (index / mdev).unlink()
        (device / "mdev_type").unlink()
        device.rmdir()
        return
    first, *_ = sorted((parent / "mdev_supported_types").iterdir())
    index.mkdir(parents=True, exist_ok=True)
    device.mkdir()
    _link(device / "mdev_type", first)
    _link(index / mdev, device)


def _link(path: pathlib.Path, target: pathlib.Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))
