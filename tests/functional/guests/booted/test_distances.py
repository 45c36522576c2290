# SPDX-License-Identifier: Apache-2.0
"""A guest reads the distances of its host's NUMA nodes."""

import pathlib
from xml.etree import ElementTree

import libvirt
from nova.virt.libvirt import config as vconfig

from tests.lab.guests import boot_files, live_guest
from virt_hooks.guest.topology import distances

HOST = {(0, 0): 10, (0, 1): 32, (1, 0): 32, (1, 1): 10}


def test_distances_of_the_host(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    config = vconfig.LibvirtConfigGuest()
    config.cpu = vconfig.LibvirtConfigGuestCPU()
    config.cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
    console = tmp_path / "console"
    domain = ElementTree.fromstring(
        live_guest.build_domain(files, console, ())
    )
    cpu = domain.find("./cpu")
    assert cpu is not None
    for number in (0, 1):
        cell = vconfig.LibvirtConfigGuestCPUNUMACell()
        cell.id, cell.cpus, cell.memory = number, {number}, 160 << 10
        config.cpu.numa.cells.append(cell)
    distances.add(config, live_guest.CELLS, HOST)
    cpu[:] = [ElementTree.fromstring(config.cpu.numa.to_xml())]
    text = ElementTree.tostring(domain, encoding="unicode")
    with live_guest.start(qemu, text, console) as guest:
        assert guest.await_report().distances == {0: [10, 32], 1: [32, 10]}
