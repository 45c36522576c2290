# SPDX-License-Identifier: Apache-2.0
"""Script of guests: its files, from metadata and a tree of sysfs."""

import ast
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from contrib.guest import nova_accel_guest
from tests.unit.house import sources
from virt_hooks.operations.metadata import device_description, host_links

SERVER = "6a0a5f6e-0000-4000-8000-00000000000a"
SCRIPT = sources.ROOT / "contrib/guest/nova_accel_guest.py"
FAST = host_links.Link(speed="32.0 GT/s PCIe", width=16)
UPLINK = host_links.Link(speed="16.0 GT/s PCIe", width=8)
#: Guest address, card, bridges, NUMA node of the host and of the guest.
PLACES = (
    ("0000:08:00.0", "0000:19:00.0", ("pci0000:16", "p", "s", "d1"), 1, 0),
    ("0000:09:00.0", "0000:1a:00.0", ("pci0000:16", "p", "s", "d2"), 1, 0),
    ("0000:0d:00.0", "0000:5a:00.0", ("pci0000:58", "q"), 3, 1),
)


def list_devices() -> list[device_description.GuestDevice]:
    peers = {0: frozenset({PLACES[2][1]}), 2: frozenset({PLACES[0][1]})}
    return [
        device_description.GuestDevice(
            profile="A40-48Q",
            model="NVIDIA A40 (PCIe)",
            vendor_id="10de",
            driver_version="550.90.05",
            address=address,
            card=card,
            numa_node=node,
            cell=cell,
            peers=peers.get(number, frozenset()),
            place=host_links.HostPlace(
                bridges=tuple(
                    host_links.Bridge(
                        name=name,
                        link=UPLINK if name == "s" else host_links.UNKNOWN,
                    )
                    for name in bridges
                ),
                link=FAST,
            ),
        )
        for number, (address, card, bridges, node, cell) in enumerate(PLACES)
    ]


def build_metadata(
    devices: list[device_description.GuestDevice],
) -> dict[str, Any]:
    """Return what Nova's metadata has of devices and of a tagged disk."""
    texts = device_description.describe(SERVER, devices)
    disk = {"type": "disk", "bus": "scsi", "address": "1:0:2:0"}
    return {
        "uuid": SERVER,
        "devices": [
            {**disk, "tags": ["database"]},
            {**disk, "tags": []},
            *(
                {
                    "type": "disk",
                    "serial": None,
                    "bus": "pci",
                    "address": device.address,
                    "tags": ["accelerator", device.profile, text],
                }
                for device, text in zip(devices, texts, strict=True)
            ),
        ],
    }


class Guest:
    """A guest's sysfs and the files of the script, below a directory."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.nfd, self.dra, self.nccl = (
            root / "features.d/nova-accel",
            root / "run/dra.json",
            root / "run/nccl.xml",
        )

    def add(self, address: str, complex_name: str, node: int) -> None:
        """Add a GPU below a root complex of the guest."""
        path = self.root / "sys/devices" / complex_name / address
        path.mkdir(parents=True)
        (path / "class").write_text("0x030200\n")
        (path / "numa_node").write_text(f"{node}\n")
        bus = self.root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / address).symlink_to(path)

    def run(self, source: str) -> int:
        return nova_accel_guest.main(
            [
                *("--metadata", source, "--sysfs", str(self.root / "sys")),
                *("--nfd", str(self.nfd), "--dra", str(self.dra)),
                *("--nccl", str(self.nccl)),
            ]
        )

    def run_with(self, metadata: Any) -> int:
        path = self.root / "meta_data.json"
        path.write_text(json.dumps(metadata))
        return self.run(str(path))

    def read_dra(self) -> dict[str, dict[str, Any]]:
        devices: dict[str, dict[str, Any]] = json.loads(self.dra.read_text())
        return devices["devices"]


@pytest.fixture
def mirrored(tmp_path: pathlib.Path) -> Guest:
    guest = Guest(tmp_path)
    for address, _, _, _, cell in PLACES:
        guest.add(address, "pci0000:0b" if cell else "pci0000:05", cell)
    return guest


@pytest.fixture
def flat(tmp_path: pathlib.Path) -> Guest:
    guest = Guest(tmp_path)
    for address, *_ in PLACES:
        guest.add(address, "pci0000:00", -1)
    return guest


def test_labels(mirrored: Guest) -> None:
    assert mirrored.run_with(build_metadata(list_devices())) == 0
    assert mirrored.nfd.read_text().splitlines() == [
        "nova-accel.count=3",
        "nova-accel.driver-branch=550",
        "nova-accel.license=vWS",
        "nova-accel.link-domains=1",
        "nova-accel.mirrored=true",
        "nova-accel.model=NVIDIA-A40-PCIe",
        "nova-accel.numa-nodes=2",
        "nova-accel.pcie-roots=2",
        "nova-accel.profile=A40-48Q",
    ]


def test_attributes_of_a_mirrored_guest_are_its_own(mirrored: Guest) -> None:
    """Drivers of other devices read the same values from sysfs."""
    assert mirrored.run_with(build_metadata(list_devices())) == 0
    prefix = "resource.kubernetes.io/"
    assert mirrored.read_dra() == {
        address: {
            f"{prefix}pciBusID": {"string": address},
            f"{prefix}pcieRoot": {
                "string": "pci0000:0b" if cell else "pci0000:05"
            },
            f"{prefix}numaNode": {"int": cell},
        }
        for address, _, _, _, cell in PLACES
    }


def test_attributes_of_a_flat_guest_are_those_of_the_host(flat: Guest) -> None:
    assert flat.run_with(build_metadata(list_devices())) == 0
    attributes = flat.read_dra()
    first, second, third = (
        attributes[address]["resource.kubernetes.io/pcieRoot"]["string"]
        for address, *_ in PLACES
    )
    assert first == second != third
    assert not first.startswith("pci")
    nodes = [
        values["resource.kubernetes.io/numaNode"]["int"]
        for values in attributes.values()
    ]
    assert nodes == [0, 0, 1]
    assert "mirrored=false" in flat.nfd.read_text()


@pytest.mark.parametrize("shape", ["mirrored", "flat"])
def test_topology_of_nccl(shape: str, request: Any) -> None:
    """Also a flat guest has the host's switch."""
    guest = request.getfixturevalue(shape)
    assert guest.run_with(build_metadata(list_devices())) == 0
    system = ElementTree.fromstring(guest.nccl.read_text())
    assert (system.tag, system.attrib) == ("system", {"version": "1"})
    nodes = [cpu.get("numaid") for cpu in system.iterfind("cpu")]
    assert nodes == ["0", "1"]
    (switch,) = system.findall("cpu[@numaid='0']/pci")
    assert switch.get("busid") == "ffff:ff:00.0"
    assert (switch.get("link_speed"), switch.get("link_width")) == (
        "16.0 GT/s PCIe",
        "8",
    )
    below = [pci.attrib for pci in switch]
    assert below == [
        {
            "busid": address,
            "class": "0x030200",
            "link_speed": "32.0 GT/s PCIe",
            "link_width": "16",
        }
        for address, *_ in PLACES[:2]
    ]
    (alone,) = system.findall("cpu[@numaid='1']/pci")
    assert alone.get("busid") == PLACES[2][0]


def test_without_accelerators_the_files_are_removed(mirrored: Guest) -> None:
    assert mirrored.run_with(build_metadata(list_devices())) == 0
    assert mirrored.nccl.exists()
    assert mirrored.run_with({"devices": []}) == 0
    for path in (mirrored.nfd, mirrored.dra, mirrored.nccl):
        assert not path.exists()


def test_a_detached_device_is_no_node_of_nccl(mirrored: Guest) -> None:
    """A config drive still lists it."""
    (mirrored.root / "sys/bus/pci/devices" / PLACES[2][0]).unlink()
    assert mirrored.run_with(build_metadata(list_devices())) == 0
    assert PLACES[2][0] not in mirrored.nccl.read_text()


def test_the_tags_of_an_earlier_release(mirrored: Guest) -> None:
    metadata = build_metadata(list_devices())
    for device in metadata["devices"]:
        device["tags"] = device["tags"][:2]
    assert mirrored.run_with(metadata) == 0
    assert "nova-accel.profile=A40-48Q" in mirrored.nfd.read_text()
    assert not mirrored.nccl.exists()


def test_a_later_version_is_refused(mirrored: Guest, capsys: Any) -> None:
    metadata = build_metadata(list_devices())
    for device in metadata["devices"][2:]:
        device["tags"][2] = device["tags"][2].replace(
            '"version":1', '"version":2'
        )
    assert mirrored.run_with(metadata) == 1
    assert capsys.readouterr().err == (
        "nova_accel_guest: the metadata has version 2, and this script reads"
        " version 1: install a later one\n"
    )
    assert not mirrored.nfd.exists()


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"'])
def test_bad_metadata_writes_no_file(mirrored: Guest, text: str) -> None:
    path = mirrored.root / "meta_data.json"
    path.write_text(text)
    assert mirrored.run(str(path)) == 1
    assert not mirrored.nfd.exists()


class _Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = json.dumps(build_metadata(list_devices())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/meta_data.json"
    server.shutdown()
    server.server_close()


def test_the_metadata_service(
    mirrored: Guest, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    assert mirrored.run(service) == 0
    assert "count=3" in mirrored.nfd.read_text()


def test_a_file_with_the_same_content_is_not_written(mirrored: Guest) -> None:
    """NFD and NCCL read it at any time."""
    metadata = build_metadata(list_devices())
    assert mirrored.run_with(metadata) == 0
    before = mirrored.nfd.stat()
    assert mirrored.run_with(metadata) == 0
    assert mirrored.nfd.stat().st_ino == before.st_ino


def test_python_3_8_parses_it() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert modules <= {
        *("__future__", "argparse", "collections.abc", "contextlib", "json"),
        *("os", "re", "subprocess", "sys", "tempfile", "typing"),
        *("urllib.request", "xml.etree"),
    }
