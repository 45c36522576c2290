# SPDX-License-Identifier: Apache-2.0
"""Distances of NUMA nodes are read from the kernel, and written for guests."""

from pathlib import Path

import pytest
from nova.virt.libvirt import config as vconfig

from virt_hooks.guest.topology import device_reader, distances

# Two sockets of two nodes; node 1 has no memory and is offline.
HOST = {0: "10 12 32 32", 2: "12 10 32 32", 3: "32 32 10 12", 4: "32 32 12 10"}


def read(root: Path, rows: dict[int, str]) -> distances.Distances:
    for node, row in rows.items():
        directory = root / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "distance").write_text(f"{row}\n")
    return device_reader.DeviceReader(str(root)).read_distances()


def test_nodes_that_are_offline_have_no_column(tmp_path: Path) -> None:
    host = read(tmp_path, HOST)
    assert len(host) == 16
    assert (host[0, 0], host[0, 2], host[0, 3], host[4, 3]) == (10, 12, 32, 12)


@pytest.mark.parametrize("row", ["10", "10 x", ""])
def test_a_row_of_another_length_is_unknown(tmp_path: Path, row: str) -> None:
    assert read(tmp_path, {0: "10 20", 1: row}) == {(0, 0): 10, (0, 1): 20}


def test_a_host_without_nodes_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == {}


def test_the_cells_of_a_guest_have_the_distances_of_their_nodes(
    tmp_path: Path,
) -> None:
    host = read(tmp_path, HOST)
    assert distances.choose({3: 0, 0: 1}, host) == {
        (0, 0): 10,
        (0, 1): 32,
        (1, 0): 32,
        (1, 1): 10,
    }


@pytest.mark.parametrize("cells", [{}, {0: 0}, {0: 0, 9: 1}])
def test_unknown_distances_are_not_written(
    tmp_path: Path, cells: dict[int, int]
) -> None:
    assert distances.choose(cells, read(tmp_path, HOST)) == {}


@pytest.mark.parametrize("distance", [0, 10, 255])
def test_a_distance_that_no_guest_can_have(distance: int) -> None:
    host = {(0, 0): 10, (1, 1): 10, (0, 1): 20, (1, 0): distance}
    assert distances.choose({0: 0, 1: 1}, host) == {}


def build_guest(cells: int) -> vconfig.LibvirtConfigGuest:
    config = vconfig.LibvirtConfigGuest()
    config.cpu = vconfig.LibvirtConfigGuestCPU()
    config.cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
    for number in range(cells):
        cell = vconfig.LibvirtConfigGuestCPUNUMACell()
        cell.id, cell.cpus, cell.memory = number, {number}, 1024
        config.cpu.numa.cells.append(cell)
    return config


def test_the_xml_of_cells_with_distances(tmp_path: Path) -> None:
    config = build_guest(2)
    distances.add(config, {0: 0, 2: 1}, read(tmp_path, HOST))
    assert config.cpu.numa.to_xml(pretty_print=False) == (
        '<numa><cell id="0" cpus="0" memory="1024"><distances>'
        '<sibling id="0" value="10"/><sibling id="1" value="12"/>'
        '</distances></cell><cell id="1" cpus="1" memory="1024"><distances>'
        '<sibling id="0" value="12"/><sibling id="1" value="10"/>'
        "</distances></cell></numa>"
    )


def test_a_cell_on_an_unknown_node_leaves_all_as_they_are(
    tmp_path: Path,
) -> None:
    config = build_guest(3)
    distances.add(config, {0: 0, 2: 1}, read(tmp_path, HOST))
    assert "distances" not in config.cpu.numa.to_xml()


def test_a_guest_without_numa_stays_as_it_is(tmp_path: Path) -> None:
    config = vconfig.LibvirtConfigGuest()
    distances.add(config, {0: 0, 2: 1}, read(tmp_path, HOST))
    assert config.cpu is None
