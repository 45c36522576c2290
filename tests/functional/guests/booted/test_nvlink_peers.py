# SPDX-License-Identifier: Apache-2.0
"""Guests see NVLink peers below one switch, as deep as trees become."""

import pathlib

import libvirt

from tests.functional.guests.booted import test_mirrored_guests
from tests.lab.guests import boot_files, live_guest
from tests.unit.virt_hooks.guest.topology import host_trees, test_picture
from virt_hooks.guest.topology import picture

ROOT, PORT = "pci0000:16", "0000:16:01.0"
SWITCH = (ROOT, PORT, "0000:17:00.0")
BELOW = (*SWITCH, "0000:18:00.0", "0000:19:00.0")
# A GPU and a NIC below a switch behind a switch, another NIC behind the first
# one, a GPU of another root port, and one of another NUMA node.
DEVICES = (
    test_picture.device(*BELOW, "0000:1a:00.0", at="0000:1b:00.0"),
    test_picture.device(*BELOW, "0000:1a:04.0", at="0000:1c:00.0"),
    test_picture.device(*SWITCH, "0000:18:04.0", at="0000:1d:00.0"),
    test_picture.device(ROOT, "0000:16:03.0", at="0000:2a:00.0"),
    test_picture.device(
        "pci0000:96", "0000:96:01.0", at="0000:97:00.0", node=1
    ),
)
GPUS = {"0000:1b:00.0", "0000:2a:00.0", "0000:97:00.0"}
PEERS = {gpu: GPUS - {gpu} for gpu in GPUS}


def test_switches_of_peers_above_switches_of_the_host(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    drawn = picture.mirror(
        DEVICES,
        live_guest.CELLS,
        test_mirrored_guests.SPARE_PORTS,
        test_mirrored_guests.ROOT_PORTS + 1,
        peers=PEERS,
    )
    devices = test_mirrored_guests.build_devices(drawn)
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        report = guest.await_report()
    expected = host_trees.list_host_clusters(DEVICES, PEERS)
    assert test_mirrored_guests.list_clusters(report, drawn) == expected
    assert len(expected) == 5
    for device in DEVICES:
        place = drawn.places[device.handle]
        function = report.functions[test_mirrored_guests.spell(place)]
        assert function.node == device.numa_node
        assert not function.unassigned
