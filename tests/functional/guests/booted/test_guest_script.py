# SPDX-License-Identifier: Apache-2.0
"""The script of guests runs in a guest, which reads metadata over HTTP."""

import contextlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from tests.functional.guests.booted import test_mirrored_guests as mirrored
from tests.functional.guests.booted.test_silent_failures import NIC
from tests.lab.guests import boot_files, live_guest
from tests.unit.house import sources
from virt_hooks.guest.topology import host_tree, picture
from virt_hooks.operations.metadata import device_description, host_links

SERVER = "6a0a5f6e-0000-4000-8000-00000000000a"
LINK = host_links.Link(speed="32.0 GT/s PCIe", width=16)
# QEMU's user network: this computer's loopback interface is 10.0.2.2.
SCRIPT = """\
ifconfig eth0 10.0.2.15 up
url=http://10.0.2.2:{port}/openstack/latest/meta_data.json
/usr/bin/python3 /nova_accel_guest.py --metadata "$url" || exit
for file in nfd:/etc/kubernetes/node-feature-discovery/features.d/nova-accel \\
    dra:/run/nova-accel/dra-attributes.json \\
    nccl:/run/nvidia-topologyd/virtualTopology.xml; do
    sed "s/^/${{file%%:*}} /" "${{file#*:}}"
done
"""
WORDS = " ".join(
    f"module={name.rpartition('/')[2]}" for name in boot_files.NETWORK_MODULES
)


@contextlib.contextmanager
def serve(content: bytes) -> Iterator[int]:
    """Serve metadata on this computer's loopback interface; yield the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def build_metadata(addresses: dict[str, str]) -> bytes:
    """Return Nova's metadata of a guest with the devices of HOST.

    :param addresses: of each handle in the guest.
    """
    devices = [
        device_description.GuestDevice(
            profile="whole",
            address=addresses[handle],
            card=device.address,
            model="A100",
            numa_node=device.numa_node,
            cell=device.numa_node,
            peers=frozenset(),
            place=host_links.HostPlace(
                bridges=tuple(
                    host_links.Bridge(name=name) for name in device.bridges
                ),
                link=LINK,
            ),
        )
        for device in mirrored.HOST
        for handle in device.handles
    ]
    texts = device_description.describe(SERVER, devices)
    content = {
        "uuid": SERVER,
        "devices": [
            {
                "type": "disk",
                "bus": "pci",
                "address": device.address,
                "tags": ["accelerator", device.profile, text],
            }
            for device, text in zip(devices, texts, strict=True)
        ],
    }
    return json.dumps(content).encode()


def select(console: str, name: str) -> str:
    """Return a file that the guest has printed."""
    lines = console.replace("\r", "").split("\n")
    return "\n".join(
        line.removeprefix(f"{name} ")
        for line in lines
        if line.startswith(f"{name} ")
    )


def build_flat() -> tuple[list[str], dict[str, str]]:
    """Return devices on root ports of bus 0, and their addresses."""
    handles = [h for device in mirrored.HOST for h in device.handles]
    count = len(handles) + 1
    ports = live_guest.build_controllers(picture.Picture(), count)
    devices = [
        live_guest.build_memory(1, mirrored.build_place(index))
        for index in range(1, count)
    ]
    addresses = {h: f"0000:{n:02x}:00.0" for n, h in enumerate(handles, 1)}
    return [*ports, *devices], addresses


@pytest.fixture(params=["mirrored", "flat"])
def layout(request: Any) -> tuple[list[str], dict[str, str]]:
    if request.param == "flat":
        return build_flat()
    drawn = mirrored.mirror(mirrored.HOST)
    return mirrored.build_devices(drawn), {
        handle: mirrored.spell(place) for handle, place in drawn.places.items()
    }


def test_files_of_a_guest(
    qemu: libvirt.virConnect,
    kernel: pathlib.Path,
    layout: tuple[list[str], dict[str, str]],
    tmp_path: pathlib.Path,
) -> None:
    devices, addresses = layout
    program = sources.ROOT / "contrib/guest/nova_accel_guest.py"
    with serve(build_metadata(addresses)) as port:
        files = boot_files.build_with_python(
            kernel,
            tmp_path,
            {
                "/script": SCRIPT.format(port=port),
                "/nova_accel_guest.py": program.read_text(),
            },
        )
        words = f"{WORDS} script"
        with live_guest.boot(
            qemu, files, tmp_path, [*devices, NIC], words
        ) as guest:
            report = guest.await_report()
            status = guest.await_line("STATUS")
            assert status == "STATUS 0", guest.read_console()
            console = guest.read_console()
    first, second, *_, last = mirrored.HOST
    check_attributes(json.loads(select(console, "dra")), report, addresses)
    check_topology(
        ElementTree.fromstring(select(console, "nccl")),
        addresses[first.handle],
        addresses[second.handle],
        addresses[last.handle],
    )
    labels = select(console, "nfd").splitlines()
    assert "nova-accel.count=5" in labels
    assert "nova-accel.pcie-roots=2" in labels


def check_attributes(
    attributes: Any, report: live_guest.Report, addresses: dict[str, str]
) -> None:
    """The guest's root complex counts, unless all devices are below it."""
    prefix = "resource.kubernetes.io/"
    roots: dict[str, set[str]] = {}
    for device in mirrored.HOST:
        values = attributes["devices"][addresses[device.handle]]
        root = values[f"{prefix}pcieRoot"]["string"]
        roots.setdefault(device.root_complex, set()).add(root)
        own = report.functions[addresses[device.handle]].bridges[0]
        assert own in (root, "pci0000:00")
        assert values[f"{prefix}numaNode"] == {"int": device.numa_node}
    assert len(roots) == len({root for (root,) in roots.values()})


def check_topology(
    system: ElementTree.Element, first: str, second: str, last: str
) -> None:
    """Two devices are below a switch of the host, and one is not."""
    (cpu, other) = system
    assert (cpu.get("numaid"), other.get("numaid")) == ("0", "1")
    switches = [
        {pci.get("busid") for pci in bridge}
        for bridge in cpu
        if bridge.get("class") == "0x060400"
    ]
    assert {first, second} in switches
    assert [pci.get("busid") for pci in other] == [last]
    links = {
        (pci.get("link_speed"), pci.get("link_width"))
        for pci in system.iter("pci")
    }
    assert links == {(LINK.speed, str(LINK.width))}


def test_the_host_has_one_switch_of_two() -> None:
    """Else the test above compares nothing."""
    (switch,) = (
        branch
        for branch in host_tree.build_trees(mirrored.HOST)[
            "pci0000:16"
        ].branches
        if branch.branches
    )
    assert len(switch.branches) == 2
