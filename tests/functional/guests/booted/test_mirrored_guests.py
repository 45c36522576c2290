# SPDX-License-Identifier: Apache-2.0
"""Guests see the tree, the NUMA nodes and the BARs of their host's devices."""

import itertools
import pathlib
import tempfile
import threading

import libvirt
from hypothesis import HealthCheck, Phase, given, settings

from tests.lab.guests import boot_files, live_guest
from tests.support import examples
from tests.unit.virt_hooks.guest.topology import host_trees, test_picture
from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import host_tree, picture

ROOT_PORTS, SPARE_PORTS = 4, 1
SIZES_MIB = (1, 2, 4, 8)
HOST = (
    test_picture.device(
        *("pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:00.0"),
        at="0000:19:00.0",
    ),
    test_picture.device(
        *("pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:04.0"),
        at="0000:1a:00.0",
    ),
    test_picture.device(
        *("pci0000:16", "0000:16:03.0"),
        at="0000:2a:00.0",
        members=("0000:2a:00.1",),
    ),
    test_picture.device(
        "pci0000:58", "0000:58:03.0", at="0000:5a:00.0", node=1
    ),
)
# A guest takes seconds: a failure is not made smaller.
GUESTS = settings(
    max_examples=examples.examples(20),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)


def mirror(devices: tuple[host_tree.HostDevice, ...]) -> picture.Picture:
    return picture.mirror(
        devices, live_guest.CELLS, SPARE_PORTS, ROOT_PORTS + 1
    )


def list_sizes(drawn: picture.Picture) -> dict[str, int]:
    """Return the MiB of the BAR of each function."""
    handles = sorted(drawn.places)
    return {h: SIZES_MIB[n % len(SIZES_MIB)] for n, h in enumerate(handles)}


def build_devices(drawn: picture.Picture) -> list[str]:
    sizes = list_sizes(drawn)
    return [
        *live_guest.build_controllers(drawn, ROOT_PORTS),
        *(
            live_guest.build_memory(sizes[handle], place)
            for handle, place in drawn.places.items()
        ),
    ]


def build_place(bus: int) -> guest_pci.GuestPciAddress:
    """Return the place of a device alone on a port."""
    return guest_pci.GuestPciAddress(
        bus=bus, slot=0, function=0, is_first=False
    )


def spell(place: guest_pci.GuestPciAddress) -> str:
    """Return the address that the guest must see."""
    return f"0000:{place.bus:02x}:{place.slot:02x}.{place.function:x}"


def list_clusters(
    report: live_guest.Report, drawn: picture.Picture
) -> set[host_trees.Cluster]:
    """Return the devices below each root complex and each shared bridge."""
    below: dict[str, set[str]] = {}
    for handle, place in drawn.places.items():
        for bridge in report.functions[spell(place)].bridges:
            below.setdefault(bridge, set()).add(handle)
    slots = {handle: place.bus for handle, place in drawn.places.items()}
    return {
        (
            "complex" if bridge.startswith("pci") else "bridge",
            frozenset(handles),
        )
        for bridge, handles in below.items()
        if bridge.startswith("pci") or len({slots[h] for h in handles}) > 1
    }


def check(
    report: live_guest.Report,
    devices: tuple[host_tree.HostDevice, ...],
    drawn: picture.Picture,
) -> None:
    """Compare a guest's sysfs with the host's tree, restricted."""
    sizes = list_sizes(drawn)
    assert list_clusters(report, drawn) == (
        host_trees.list_host_clusters(devices)
    )
    for device in devices:
        node = -1 if device.numa_node is None else device.numa_node
        for handle in device.handles:
            function = report.functions[spell(drawn.places[handle])]
            assert function.node == node
            assert function.bars[2] == sizes[handle] << 20
            assert not function.unassigned
    bridges = [f for f in report.functions.values() if f.is_bridge]
    expanders = len(drawn.expanders)
    assert len(bridges) == ROOT_PORTS + len(drawn.controllers) - expanders


@given(devices=test_picture.guests())
@GUESTS
def test_random_hosts(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    devices: tuple[host_tree.HostDevice, ...],
) -> None:
    drawn = mirror(devices)
    with (
        tempfile.TemporaryDirectory() as place,
        live_guest.boot(
            qemu, files, pathlib.Path(place), build_devices(drawn)
        ) as guest,
    ):
        check(guest.await_report(), devices, drawn)


def test_hot_attach_to_a_spare_port(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """The device appears at its address, on the node of the expander."""
    drawn = mirror(HOST)
    devices = build_devices(drawn)
    with live_guest.boot(qemu, files, tmp_path, devices, "watch") as guest:
        check(guest.await_report(), HOST, drawn)
        places = [build_place(bus) for bus in drawn.spare_ports]
        assert len(places) == 2
        for number, place in enumerate(places):
            guest.domain.attachDevice(live_guest.build_memory(1, place))
            function = guest.await_report(number + 2).functions[spell(place)]
            assert function.node == number
            assert function.bars[2] == 1 << 20


def test_libvirt_sends_an_event_of_a_device_that_is_plugged_in(
    embedded_qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """``WatchedDomains`` reads the XML of the guest again then."""
    drawn = mirror(HOST)
    names: list[str] = []
    is_sent = threading.Event()

    def note(_: object, domain: libvirt.virDomain, *_details: object) -> None:
        names.append(domain.UUIDString())
        is_sent.set()

    number = embedded_qemu.domainEventRegisterAny(
        None, libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, note, None
    )
    try:
        with live_guest.boot(
            embedded_qemu, files, tmp_path, build_devices(drawn), "watch"
        ) as guest:
            place = build_place(drawn.spare_ports[0])
            guest.domain.attachDevice(live_guest.build_memory(1, place))
            assert is_sent.wait(60)
            assert names == [guest.domain.UUIDString()]
    finally:
        embedded_qemu.domainEventDeregisterAny(number)


def test_volumes_and_ports_come_and_go_beside_the_mirror(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """As Nova attaches them, without an address: they are on bus 0's ports."""
    volume = tmp_path / "volume"
    volume.write_bytes(bytes(1 << 20))
    elements = {
        f'<disk type="file"><source file="{volume}"/>'
        '<target dev="vdb" bus="virtio"/></disk>': "0x010000",
        '<interface type="user"><mac address="52:54:00:12:34:56"/>'
        '<model type="virtio"/></interface>': "0x020000",
    }
    numbers = itertools.count(2)
    drawn = mirror(HOST)
    devices = build_devices(drawn)
    with live_guest.boot(qemu, files, tmp_path, devices, "watch") as guest:
        first = before = guest.await_report().functions
        for element, class_code in elements.items():
            guest.domain.attachDevice(element)
            after = guest.await_report(next(numbers))
            (address,) = after.functions.keys() - before.keys()
            function = after.functions[address]
            assert function.class_code == class_code
            assert int(address[5:7], 16) <= ROOT_PORTS
            assert function.bars
            before = after.functions
        check(after, HOST, drawn)
        for element in elements:
            guest.domain.detachDevice(element)
            after = guest.await_report(next(numbers))
        assert after.functions.keys() == first.keys()
        check(after, HOST, drawn)
