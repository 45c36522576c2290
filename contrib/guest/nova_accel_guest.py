#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files about the accelerators of a guest, from OpenStack's metadata.

Run it in the guest, as root, at boot and after each attachment:

- NFD: labels of the node, for Node Feature Discovery
- DRA: attributes of the devices, for drivers of Dynamic Resource Allocation
- NCCL: topology that NCCL reads in place of the guest's PCIe links

It needs Python 3.8 or later, and no other package. Without accelerators the
files are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from xml.etree import ElementTree

VERSION = 1
SERVICE = "http://169.254.169.254/openstack/latest/meta_data.json"
#: Label of the config drive's file system (Nova's "Metadata service").
DRIVE = "/dev/disk/by-label/config-2"
DRIVE_FILE = "openstack/latest/meta_data.json"
TAG = "accelerator"
#: NCCL reads the file without NCCL_TOPO_FILE here.
NCCL = "/run/nvidia-topologyd/virtualTopology.xml"
NFD = "/etc/kubernetes/node-feature-discovery/features.d/nova-accel"
DRA = "/run/nova-accel/dra-attributes.json"
_LIMIT = 1 << 20
_TIMEOUT_S = 5
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# Bus 0, where a guest has devices whose place on the host it does not see.
_FLAT_ROOT = "pci0000:00"
# Ends of a value of a label (Kubernetes' "Labels and Selectors").
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_LABEL_SIZE = 63
# Buses of bridges that the guest does not have: no guest has this domain.
_BRIDGE_DOMAIN, _LAST_BUS, _SLOTS = "ffff", 0xFF, 32
_BRIDGE_CLASS = "0x060400"


class Accelerator:
    """One accelerator of this guest.

    ``address`` is its PCI address, ``description`` the JSON of its tag.
    ``root`` and ``node`` are the guest's own root complex and NUMA node,
    empty or None without one.
    """

    def __init__(
        self, address: str, description: dict[str, Any], sysfs: str
    ) -> None:
        self.address = address
        self.description = description
        path = os.path.realpath(f"{sysfs}/bus/pci/devices/{address}")
        self.is_present = bool(address) and os.path.isdir(path)
        roots = [part for part in path.split("/") if _ROOT.fullmatch(part)]
        self.root = roots[-1] if self.is_present and roots else ""
        self.node = _read_node(path) if self.is_present else None
        self.class_code = _read(f"{path}/class") if self.is_present else ""

    @property
    def cell(self) -> int | None:
        """Return its NUMA node, as sysfs or else the host knows it."""
        return self.description.get("cell") if self.node is None else self.node


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_LIMIT).strip()
    except (OSError, ValueError):
        return ""


def _read_node(path: str) -> int | None:
    text = _read(f"{path}/numa_node")
    return int(text) if text.isdigit() else None


# -- metadata ----------------------------------------------------------------


def read_metadata(source: str) -> Any:
    """Return the metadata of a source, a file or a URL.

    :raises OSError: it can't be read.
    :raises ValueError: it is no JSON.
    """
    if source.startswith(("http://", "https://")):
        # No proxy: the address is of this link only.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(source, timeout=_TIMEOUT_S) as reply:
            return json.loads(reply.read(_LIMIT))
    with open(source, "rb") as file:
        return json.loads(file.read(_LIMIT))


def find_metadata(drive: str = DRIVE) -> Any:
    """Return the metadata of the service, or else of the config drive.

    The service lists the present devices, a config drive those of the
    server's creation.

    :raises OSError: neither can be read.
    """
    try:
        return read_metadata(SERVICE)
    except (OSError, ValueError) as error:
        if not os.path.exists(drive):
            raise OSError(f"{SERVICE}: {error}; no config drive") from error
    with mounted(drive) as directory:
        return read_metadata(os.path.join(directory, DRIVE_FILE))


@contextlib.contextmanager
def mounted(drive: str) -> Iterator[str]:
    """Mount a file system read-only; yield the directory."""
    with tempfile.TemporaryDirectory() as directory:
        _run("mount", "-o", "ro", drive, directory)
        try:
            yield directory
        finally:
            _run("umount", directory)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)  # noqa: S603 - fixed words


def parse_devices(metadata: Any, sysfs: str) -> list[Accelerator]:
    """Return the accelerators in the metadata of a server.

    :raises ValueError: it is no metadata, or of a later version.
    """
    if not isinstance(metadata, dict):
        raise ValueError("this is no meta_data.json of OpenStack")
    accelerators = []
    for device in metadata.get("devices") or ():
        tags = device.get("tags") or ()
        if TAG not in tags[:1]:
            continue
        description = _parse_description(tags[1:])
        address = str(device.get("address", ""))
        is_address = _ADDRESS.fullmatch(address) is not None
        accelerators.append(
            Accelerator(address if is_address else "", description, sysfs)
        )
    return sorted(accelerators, key=lambda a: a.address)


def _parse_description(tags: Iterable[str]) -> dict[str, Any]:
    """Return a description; only the profile from an older nova-accel."""
    words = list(tags)
    description: dict[str, Any] = {}
    for word in words[1:]:
        if word.startswith("{"):
            description = json.loads(word)
            break
    version = description.get("version", VERSION)
    if version != VERSION:
        raise ValueError(
            f"the metadata has version {version}, and this"
            f" script reads version {VERSION}: install a later one"
        )
    return {"profile": "".join(words[:1]), **description}


# -- Node Feature Discovery --------------------------------------------------


def build_labels(accelerators: list[Accelerator]) -> str:
    """Return a feature file (NFD's "Local feature source")."""
    described = [a.description for a in accelerators]
    labels = {"count": str(len(accelerators))}
    for key, label in (
        ("root", "pcie-roots"),
        ("node", "numa-nodes"),
        ("link_domain", "link-domains"),
    ):
        values = {d[key] for d in described if key in d}
        if values:
            labels[label] = str(len(values))
    for key, label in (
        ("driver_branch", "driver-branch"),
        ("license", "license"),
        ("model", "model"),
        ("profile", "profile"),
    ):
        values = {str(d[key]) for d in described if d.get(key)}
        if len(values) == 1:
            labels[label] = values.pop()
    mirrored = [a.root not in ("", _FLAT_ROOT) for a in accelerators]
    labels["mirrored"] = str(all(mirrored)).lower()
    return "".join(
        f"nova-accel.{name}={_to_label(value)}\n"
        for name, value in sorted(labels.items())
    )


def _to_label(value: str) -> str:
    return _NO_LABEL.sub("-", value)[:_LABEL_SIZE].strip("-._")


# -- Dynamic Resource Allocation ---------------------------------------------


def build_attributes(accelerators: list[Accelerator]) -> str:
    """Return the standard attributes of each device, by PCI address.

    In a guest that does not mirror its host, the root complex is the id of
    the host's: all devices would have the guest's only one.
    """
    attributes = {}
    for accelerator in accelerators:
        if not accelerator.address:
            continue
        values: dict[str, Any] = {"pciBusID": {"string": accelerator.address}}
        root = accelerator.root
        if root in ("", _FLAT_ROOT):
            root = accelerator.description.get("root", "")
        if root:
            values["pcieRoot"] = {"string": root}
        if accelerator.cell is not None:
            values["numaNode"] = {"int": accelerator.cell}
        attributes[accelerator.address] = {
            f"resource.kubernetes.io/{name}": value
            for name, value in values.items()
        }
    content = {"version": VERSION, "devices": attributes}
    return json.dumps(content, indent=2) + "\n"


# -- NCCL --------------------------------------------------------------------


def build_topology(accelerators: list[Accelerator]) -> str:
    """Return NCCL's topology (its src/graph/xml.cc), or "" without links.

    NCCL takes the attributes and parents of the file, and reads from sysfs
    what it lacks; devices that no GPU or NIC is at are ignored. A bridge of
    the host has an address that no function of the guest has.
    """
    system = ElementTree.Element("system", version="1")
    parents: dict[tuple[str, ...], ElementTree.Element] = {}
    for accelerator in accelerators:
        if not accelerator.is_present or not _has_link(accelerator):
            continue
        parent = _find_cpu(system, accelerator.cell)
        names: tuple[str, ...] = ()
        for bridge in accelerator.description.get("bridges", ()):
            names = (*names, bridge["id"])
            if names not in parents:
                parents[names] = _add_bridge(parent, bridge, len(parents))
            parent = parents[names]
            _raise_link(parent, accelerator.description)
        ElementTree.SubElement(
            parent,
            "pci",
            {
                "busid": accelerator.address,
                "class": accelerator.class_code,
                **_get_link(accelerator.description),
            },
        )
    if not len(system):
        return ""
    return ElementTree.tostring(system, encoding="unicode") + "\n"


def _has_link(accelerator: Accelerator) -> bool:
    return bool(_get_link(accelerator.description))


def _get_link(values: dict[str, Any]) -> dict[str, str]:
    """Return the attributes of a link, none if it is unknown."""
    names = ("link_speed", "link_width")
    if not all(name in values for name in names):
        return {}
    return {name: str(values[name]) for name in names}


def _find_cpu(
    system: ElementTree.Element, cell: int | None
) -> ElementTree.Element:
    node = "-1" if cell is None else str(cell)
    for cpu in system.iterfind("cpu"):
        if cpu.get("numaid") == node:
            return cpu
    return ElementTree.SubElement(system, "cpu", numaid=node)


def _add_bridge(
    parent: ElementTree.Element, bridge: dict[str, Any], number: int
) -> ElementTree.Element:
    bus, slot = _LAST_BUS - number // _SLOTS, number % _SLOTS
    return ElementTree.SubElement(
        parent,
        "pci",
        {
            "busid": f"{_BRIDGE_DOMAIN}:{bus:02x}:{slot:02x}.0",
            "class": _BRIDGE_CLASS,
            "vendor": "0x0000",
            "device": "0x0000",
            "subsystem_vendor": "0x0000",
            "subsystem_device": "0x0000",
            **_get_link(bridge),
        },
    )


def _raise_link(bridge: ElementTree.Element, values: dict[str, Any]) -> None:
    """Set an unknown link of a bridge to that of the first device below."""
    if bridge.get("link_speed") is None:
        for name, value in _get_link(values).items():
            bridge.set(name, value)


# -- files -------------------------------------------------------------------


def write(path: str, text: str) -> None:
    """Replace a file in one step; remove it if there is no text."""
    if not path:
        return
    if not text:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    if _read(path) == text.strip():
        return
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    # NFD ignores files that begin with a dot.
    descriptor, name = tempfile.mkstemp(prefix=".", dir=directory)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write files about the accelerators of this guest.",
        epilog="An empty path writes no such file.",
    )
    parser.add_argument(
        "--metadata",
        metavar="FILE|URL",
        default="",
        help="meta_data.json; by default the metadata service, or else the"
        " config drive",
    )
    parser.add_argument("--nfd", metavar="FILE", default=NFD)
    parser.add_argument("--dra", metavar="FILE", default=DRA)
    parser.add_argument("--nccl", metavar="FILE", default=NCCL)
    parser.add_argument("--sysfs", default="/sys", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Write the files; return the exit status."""
    options = parse_arguments(words)
    try:
        source = options.metadata
        metadata = read_metadata(source) if source else find_metadata()
        accelerators = parse_devices(metadata, options.sysfs)
        has_any = bool(accelerators)
        write(options.nfd, build_labels(accelerators) if has_any else "")
        write(options.dra, build_attributes(accelerators) if has_any else "")
        write(options.nccl, build_topology(accelerators))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"nova_accel_guest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
