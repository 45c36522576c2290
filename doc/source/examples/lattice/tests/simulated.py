# SPDX-License-Identifier: Apache-2.0
"""Simulated host: a directory with the sysfs files of a Lattice card."""

import os
import pathlib
import sys

CARD = "0000:5a:00.0"


def make(root: pathlib.Path, vfs: int = 4, driver: str = "lattice") -> None:
    """Create the files of a host whose card has some of 8 VFs enabled."""
    place = _function(root, CARD, "0100", 40, driver)
    _write(place / "sriov_totalvfs", "8")
    _write(place / "sriov_numvfs", str(vfs))
    for name, text in (
        ("firmware", "2.1.0"),
        ("health", "ok"),
        ("vf_memory_mb", "2048"),
    ):
        _write(place / "lattice" / name, text)
    for number in range(vfs):
        child = _function(
            root, f"0000:5a:01.{number}", "0101", 41 + number, ""
        )
        (place / f"virtfn{number}").symlink_to(f"../{child.name}")
        (child / "physfn").symlink_to(f"../{CARD}")


def _function(
    root: pathlib.Path, address: str, product: str, group: int, driver: str
) -> pathlib.Path:
    place = root / "sys/devices/pci0000:5a" / address
    for name, text in (
        ("vendor", "0xf00d"),
        ("device", f"0x{product}"),
        ("class", "0x120000"),
        ("numa_node", "1"),
    ):
        _write(place / name, text)
    _link(root / "sys/bus/pci/devices" / address, place)
    members = root / f"sys/kernel/iommu_groups/{group}"
    _link(members / "devices" / address, place)
    _link(place / "iommu_group", members)
    if driver:
        bound = root / "sys/bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        _link(place / "driver", bound)
    return place


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _link(path: pathlib.Path, target: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
