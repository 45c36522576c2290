# SPDX-License-Identifier: Apache-2.0
"""Real directory trees of hosts, from short descriptions in JSON.

A description is one object with these keys, all of them optional:

``functions``
    PCI functions: ``address``, ``id`` (``10de:1eb8``), ``class`` (six hex
    digits), and if wanted ``driver``, ``numa`` (default -1), ``group``,
    ``boot_vga``, ``below`` (the bridges above it, from the root port on;
    without them it is on the root bus; a further host bridge is written as
    ``pci10000:00``), ``attributes`` (texts by name, as
    ``xgmi_hive_info/id``; ``reset_method`` is ``flr``, or null for a
    function that nothing can reset), and ``vfs`` (``total``, ``count``,
    ``offset``, ``driver``, ``id`` if not the PF's, ``first_group``;
    ``driver_of`` for single VFs, by number), which makes the VFs too.
``parents``
    mdev parents: ``on`` (a name, or a list of them), ``prefix`` of the type
    ids, and ``types``: lists of id, name or null, available, and either
    ``[framebuffer in MiB, max_instance]``, a description, or null. A
    parent off the PCI bus has ``at`` (its directory) and ``driver`` too.
``mdevs``
    mediated devices: ``uuid``, ``parent``, ``type``.
``modules``
    versions of kernel modules, by name.
``faults``
    applied last: ``path`` below ``sys``, and ``is``: a text to write, or
    ``{"fault": NAME}`` with one of ``FAULTS``.

Run it by hand to inspect a host::

    python -m tests.hosts.build tests/hosts/t4-mdev.json /tmp/t4
    nova-accel inspect --root /tmp/t4
"""

import json
import os
import pathlib
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

HERE = pathlib.Path(__file__).parent
Description = Mapping[str, Any]


def load(name: str) -> dict[str, Any]:
    """Return a description, free to be changed."""
    loaded: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return loaded


def build(description: Description, root: pathlib.Path) -> pathlib.Path:
    """Make a host's tree below a directory; return the directory."""
    tree = Tree(root)
    for function in description.get("functions", ()):
        tree.add_function(function)
    for parent in description.get("parents", ()):
        names = parent["on"]
        for name in [names] if isinstance(names, str) else names:
            tree.add_parent(name, parent)
    for mdev in description.get("mdevs", ()):
        tree.add_mdev(mdev["uuid"], mdev["parent"], mdev["type"])
    for name, version in description.get("modules", {}).items():
        tree.write(tree.sys / f"module/{name}/version", f"{version}\n")
    for fault in description.get("faults", ()):
        break_path(root, fault["path"], fault["is"])
    return root


class Tree:
    """A tree below ``root``, laid out as the kernel lays out sysfs."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.sys = root / "sys"
        self.functions = self.sys / "bus/pci/devices"
        self.functions.mkdir(parents=True)

    def write(self, path: pathlib.Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def link(self, path: pathlib.Path, target: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))

    def place(self, name: str) -> pathlib.Path:
        """Return the real directory of a function or an mdev parent."""
        link = self.functions / name
        if not link.is_symlink():
            link = self.sys / "class/mdev_bus" / name
        return link.resolve()

    def add_function(self, facts: Mapping[str, Any]) -> pathlib.Path:
        address = facts["address"]
        above = facts.get("below", ())
        domain, bus, _ = (above[0] if above else address).split(":")
        root = self.sys / f"devices/pci{domain}:{bus}"
        place: pathlib.Path = root.joinpath(*above, address)
        vendor, product = facts["id"].split(":")
        attributes: dict[str, str | None] = {
            "vendor": f"0x{vendor}",
            "device": f"0x{product}",
            "class": f"0x{facts['class']}",
            "subsystem_vendor": f"0x{vendor}",
            "subsystem_device": "0x0000",
            "numa_node": str(facts.get("numa", -1)),
            "driver_override": "(null)",
            "enable": "1",
            "reset_method": "flr",
        }
        if "boot_vga" in facts:
            attributes["boot_vga"] = str(facts["boot_vga"])
        attributes |= facts.get("attributes", {})
        # The kernel makes both files, or none (Linux 5.15).
        if attributes["reset_method"] is None:
            del attributes["reset_method"]
        else:
            attributes.setdefault("reset", "")
        attributes.setdefault("modalias", build_modalias(attributes))
        for name, text in attributes.items():
            self.write(place / name, f"{text}\n")
        self.link(self.functions / address, place)
        if facts.get("driver"):
            driver = self.sys / "bus/pci/drivers" / facts["driver"]
            driver.mkdir(parents=True, exist_ok=True)
            self.link(place / "driver", driver)
            self.link(driver / address, place)
        if "group" in facts:
            group = self.sys / f"kernel/iommu_groups/{facts['group']}"
            self.link(group / "devices" / address, place)
            self.link(place / "iommu_group", group)
        if "vfs" in facts:
            self.add_vfs(place, facts)
        return place

    def add_vfs(self, place: pathlib.Path, facts: Mapping[str, Any]) -> None:
        vfs = facts["vfs"]
        self.write(place / "sriov_totalvfs", f"{vfs['total']}\n")
        self.write(place / "sriov_numvfs", f"{vfs['count']}\n")
        for number in range(vfs["count"]):
            child = {
                k: v
                for k, v in facts.items()
                if k not in ("vfs", "attributes", "boot_vga")
            }
            child["id"] = vfs.get("id", facts["id"])
            child["address"] = vf_address(
                facts["address"], vfs["offset"] + number
            )
            child["driver"] = vfs.get("driver_of", {}).get(
                str(number), vfs.get("driver")
            )
            if "first_group" in vfs:
                child["group"] = vfs["first_group"] + number
            made = self.add_function(child)
            self.link(place / f"virtfn{number}", made)
            self.link(made / "physfn", place)
            if "vgpus" in vfs and child["driver"] == "nvidia":
                self.add_vgpu_files(made / "nvidia", vfs["vgpus"], number)

    def add_vgpu_files(
        self, place: pathlib.Path, facts: Mapping[str, Any], number: int
    ) -> None:
        of_vf = str(number)
        current = facts.get("current", {}).get(of_vf, 0)
        rows = [] if current else facts["creatable"]
        self.write(place / "current_vgpu_type", f"{current}\n")
        self.write(
            place / "creatable_vgpu_types",
            "ID    : vGPU Name\n"
            + "".join(f"{i:<5} : {name}\n" for i, name in rows),
        )
        self.write(place / "vgpu_params", "\n")
        for name, key in (
            ("placement_id", "places"),
            ("gpu_instance_id", "instances"),
        ):
            value = facts.get(key, {}).get(of_vf)
            if value is None:
                _socket(place / name)
            else:
                self.write(place / name, f"{value}\n")

    def add_parent(self, name: str, facts: Mapping[str, Any]) -> None:
        if "at" in facts:
            place = self.sys / facts["at"] / name
            place.mkdir(parents=True)
            if facts.get("driver"):
                driver = self.sys / "bus/any/drivers" / facts["driver"]
                driver.mkdir(parents=True, exist_ok=True)
                self.link(place / "driver", driver)
        else:
            place = self.place(name)
        self.link(self.sys / "class/mdev_bus" / name, place)
        (place / "mdev_supported_types").mkdir()
        for suffix, label, available, says in facts["types"]:
            kind = f"{facts['prefix']}-{suffix}"
            directory = place / "mdev_supported_types" / kind
            self.write(directory / "available_instances", f"{available}\n")
            self.write(
                directory / "device_api", facts.get("api", "vfio-pci") + "\n"
            )
            self.write(directory / "create", "")
            (directory / "devices").mkdir()
            if label is not None:
                self.write(directory / "name", f"{label}\n")
            if says is not None:
                self.write(directory / "description", describe(says))

    def add_mdev(self, uuid: str, parent: str, kind: str) -> None:
        place = self.place(parent) / uuid
        place.mkdir()
        types = self.place(parent) / "mdev_supported_types"
        self.link(place / "mdev_type", types / kind)
        self.link(self.sys / "bus/mdev/devices" / uuid, place)


def break_path(
    root: pathlib.Path, path: str, fault: str | Mapping[str, str]
) -> None:
    """Replace a path by a fault or a text."""
    place = root / "sys" / path
    place = place.parent.resolve() / place.name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(fault, str):
        place.write_text(fault)
    else:
        FAULTS[fault["fault"]](place)


def build_modalias(attributes: Mapping[str, str | None]) -> str:
    """Return a function's modalias (modalias_show() in pci-sysfs.c)."""
    keys = {
        "v": "vendor",
        "d": "device",
        "sv": "subsystem_vendor",
        "sd": "subsystem_device",
    }
    ids = [f"{k}{int(attributes[n] or '', 16):08X}" for k, n in keys.items()]
    kind = (attributes["class"] or "").removeprefix("0x").upper()
    return f"pci:{''.join(ids)}bc{kind[:2]}sc{kind[2:4]}i{kind[4:]}"


def vf_address(physical: str, offset: int) -> str:
    """Return the address of a function at an offset from another."""
    domain, bus, rest = physical.split(":")
    slot, function = rest.split(".")
    number = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function, 16)
    number += offset
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def describe(says: str | list[int]) -> str:
    if isinstance(says, str):
        return says
    memory, limit = says
    return (
        f"num_heads=4, frl_config=60, framebuffer={memory}M,"
        f" max_resolution=5120x2880, max_instance={limit}\n"
    )


def _socket(place: pathlib.Path) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # a socket's path has at most 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(place.name)
    finally:
        os.chdir(here)


def _huge(place: pathlib.Path) -> None:
    with place.open("wb") as opened:
        opened.truncate(1 << 40)


# Files of a plain directory that fail like a kernel's.
FAULTS: Mapping[str, Callable[[pathlib.Path], object]] = {
    "EIO": lambda place: place.symlink_to("/proc/self/mem"),
    "ENXIO": _socket,
    "EISDIR": lambda place: place.mkdir(),
    "dangling": lambda place: place.symlink_to("../gone/for/good"),
    "circle": lambda place: place.symlink_to(place.name),
    "pipe": os.mkfifo,
    "junk": lambda place: place.write_bytes(b"\xff\xfe\x00\x80"),
    "huge": _huge,
    "escape": lambda place: place.symlink_to("/etc/passwd"),
    "climb": lambda place: place.symlink_to("../" * 40 + "etc/passwd"),
    "missing": lambda place: None,
}


if __name__ == "__main__":
    build(
        json.loads(pathlib.Path(sys.argv[1]).read_text()),
        pathlib.Path(sys.argv[2]),
    )
