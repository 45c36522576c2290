# SPDX-License-Identifier: Apache-2.0
"""A real libvirtd and QEMU on the simulated kernel."""

from __future__ import annotations

import json
import os
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import libvirt
import pytest
import pyudev

from nova_accel.inventory.adoption import records
from nova_accel.model import providers
from tests.lab.fakehost import Controller
from tests.lab.fakehost.under_libvirt.guest import (
    domain_xml,
    mdev_hostdev,
    pci_hostdev,
    serial_of,
)
from virt_hooks.operations.adoption import definitions

pytestmark = pytest.mark.fakehost

T4 = "0000:3b:00.0"
VF = "0000:41:00.4"
NVME = "0000:51:00.0"
FPGA = "0000:61:00.0"
LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


def create(parent: str, kind: str, uuid: str) -> None:
    path = f"/sys/class/mdev_bus/{parent}/mdev_supported_types/{kind}/create"
    Path(path).write_text(uuid)


def driver_of(address: str) -> str:
    link = Path("/sys/bus/pci/devices", address, "driver")
    return link.resolve().name if link.exists() else ""


def start(
    connection: libvirt.virConnect, name: str, *hostdevs: str
) -> libvirt.virDomain:
    domain = connection.createXML(domain_xml(name, *hostdevs))
    until(lambda: "U" in serial_of(name).read_text())
    return domain


def test_libvirt_lists_functions_and_parents(
    connection: libvirt.virConnect, host: Controller
) -> None:
    flag = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV
    functions = {d.name() for d in connection.listAllDevices(flag)}
    assert functions == {
        "pci_" + address.replace(":", "_").replace(".", "_")
        for address in host.functions()
    }
    flag = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES
    parents = {d.name() for d in connection.listAllDevices(flag)}
    assert {"mtty_mtty", "pci_0000_3b_00_0", "pci_0000_41_00_4"} <= parents
    vf = connection.nodeDeviceLookupByName("pci_0000_41_00_4").XMLDesc()
    assert "<capability type='phys_function'>" in vf
    assert "<name>NVIDIA A40-2Q</name>" in vf


def test_a_device_made_by_sysfs_appears_and_goes(
    connection: libvirt.virConnect, new_uuid: str
) -> None:
    flag = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV

    def listed() -> bool:
        devices = connection.listAllDevices(flag)
        return any(new_uuid in d.XMLDesc() for d in devices)

    create("mtty", "mtty-2", new_uuid)
    until(listed)
    Path("/sys/bus/mdev/devices", new_uuid, "remove").write_text("1")
    until(lambda: not listed())


def test_a_device_made_by_libvirt_and_mdevctl(
    connection: libvirt.virConnect, host: Controller, new_uuid: str
) -> None:
    device = connection.nodeDeviceCreateXML(
        "<device><parent>pci_0000_41_00_4</parent>"
        "<capability type='mdev'><type id='nvidia-558'/>"
        f"<uuid>{new_uuid}</uuid></capability></device>"
    )
    assert host.mdevs()[new_uuid]["type"] == "nvidia-558"
    other = new_uuid[:-4] + "ffff"
    with pytest.raises(libvirt.libvirtError, match="No available instances"):
        connection.nodeDeviceCreateXML(
            device.XMLDesc().replace(new_uuid, other)
        )
    device.destroy()
    assert host.mdevs() == {}


@pytest.mark.parametrize(
    ("parent", "kind"), [("mtty", "mtty-1"), (VF, "nvidia-558")]
)
def test_definitions_of_an_adopted_mdev(
    connection: libvirt.virConnect,
    host: Controller,
    new_uuid: str,
    parent: str,
    kind: str,
) -> None:
    """They are those of mdevctl, which survive a reboot."""
    plan = _plan(parent, kind, new_uuid)
    nova_host = types.SimpleNamespace(get_connection=lambda: connection)
    adopted = definitions.Definitions(nova_host)
    path = Path("/etc/mdevctl.d", parent, new_uuid)

    def read_start() -> str:
        return str(json.loads(path.read_text())["start"])

    create(parent, kind, new_uuid)
    until(lambda: len(connection.listDevices("mdev", 0)) == 1)
    adopted.restore(plan)
    assert read_start() == "auto"

    def is_disabled() -> bool:
        adopted.disable_autostart(plan)
        return read_start() == "manual"

    # libvirt asks mdevctl in a thread, and may have the former state yet.
    until(is_disabled)
    # It exists: its server may still be ending.
    adopted.remove_unused(plan, ())
    assert read_start() == "manual"
    Path("/sys/bus/mdev/devices", new_uuid, "remove").write_text("1")
    until(lambda: host.mdevs() == {})
    adopted.remove_unused(plan, {new_uuid})
    assert read_start() == "manual"

    def is_undefined() -> bool:
        adopted.remove_unused(plan, ())
        return not path.exists()

    # libvirt has to see that it does not exist any more.
    until(is_undefined)


def _plan(parent: str, kind: str, uuid: str) -> records.Plan:
    mdev = records.AdoptedPartition(
        handle=uuid,
        parent=parent,
        type_id=kind,
        profile=kind,
        device=parent,
        units=(),
        provider="",
        resource_class="",
        slot=uuid,
        charges={},
    )
    server = records.AdoptedServer(
        uuid=uuid,
        name="server",
        partitions=(mdev,),
        specs_before={},
        specs_after={},
    )
    return records.Plan(
        source=records.Source.NOVA_MDEV,
        root=providers.ProviderRoot(name="host", uuid=uuid),
        servers=(server,),
    )


@pytest.mark.parametrize(
    ("parent", "kind"),
    [("mtty", "mtty-1"), (T4, "nvidia-232"), (VF, "nvidia-558")],
)
def test_a_domain_holds_its_mdev(
    connection: libvirt.virConnect,
    host: Controller,
    new_uuid: str,
    parent: str,
    kind: str,
) -> None:
    create(parent, kind, new_uuid)
    domain = start(connection, "one", mdev_hostdev(new_uuid))
    assert new_uuid in domain.XMLDesc()
    assert host.mdevs()[new_uuid]["in_use"]
    with pytest.raises(libvirt.libvirtError, match="in use"):
        connection.createXML(domain_xml("two", mdev_hostdev(new_uuid)))
    domain.destroy()
    until(lambda: not host.mdevs()[new_uuid]["in_use"])
    Path("/sys/bus/mdev/devices", new_uuid, "remove").write_text("1")
    assert host.mdevs() == {}


def test_a_domain_without_its_mdev_does_not_start(
    connection: libvirt.virConnect, new_uuid: str
) -> None:
    with pytest.raises(libvirt.libvirtError, match=f"{new_uuid}.*not found"):
        connection.createXML(domain_xml("one", mdev_hostdev(new_uuid)))


def test_removal_waits_for_the_guest(
    connection: libvirt.virConnect, host: Controller, new_uuid: str
) -> None:
    create("mtty", "mtty-1", new_uuid)
    domain = start(connection, "one", mdev_hostdev(new_uuid))
    remove = Path("/sys/bus/mdev/devices", new_uuid, "remove")
    writer = threading.Thread(target=remove.write_text, args=("1",))
    writer.start()
    writer.join(0.5)
    assert writer.is_alive()
    domain.destroy()
    writer.join(10)
    assert not writer.is_alive()
    assert host.mdevs() == {}


@pytest.mark.parametrize("address", [NVME, FPGA, VF])
def test_libvirt_manages_a_pci_hostdev(
    connection: libvirt.virConnect, host: Controller, address: str
) -> None:
    before = driver_of(address)
    domain = start(connection, "one", pci_hostdev(address))
    assert driver_of(address) == "vfio-pci"
    assert host.functions()[address]["in_use"]
    ids = Path("/sys/bus/pci/devices", address)
    seen = domain.XMLDesc()
    assert "managed='yes'" in seen
    vendor = (ids / "vendor").read_text().strip().removeprefix("0x")
    device = (ids / "device").read_text().strip().removeprefix("0x")
    assert f"{vendor}:{device}" in monitor(domain, "info pci")
    domain.destroy()
    until(lambda: driver_of(address) == before)
    assert not host.functions()[address]["in_use"]


def test_an_unmanaged_hostdev_must_be_on_vfio(
    connection: libvirt.virConnect,
) -> None:
    hostdev = pci_hostdev(NVME, managed=False)
    with pytest.raises(libvirt.libvirtError, match="manually detached"):
        connection.createXML(domain_xml("one", hostdev))


def test_hot_attach_and_detach(
    connection: libvirt.virConnect, host: Controller, new_uuid: str
) -> None:
    domain = start(connection, "one")
    create(T4, "nvidia-232", new_uuid)
    for hostdev in (mdev_hostdev(new_uuid), pci_hostdev(NVME)):
        domain.attachDeviceFlags(hostdev, LIVE)
        assert "<hostdev" in domain.XMLDesc()
        assert "10de:1eb8" in monitor(domain, "info pci") or (
            "144d:a824" in monitor(domain, "info pci")
        )
        domain.detachDeviceFlags(hostdev, LIVE)
        until(lambda: "<hostdev" not in domain.XMLDesc())
    until(lambda: driver_of(NVME) == "nvme")
    assert not host.mdevs()[new_uuid]["in_use"]


def test_events_reach_libudev(host: Controller, new_uuid: str) -> None:
    monitor = pyudev.Monitor.from_netlink(pyudev.Context())
    monitor.filter_by("mdev")
    monitor.start()
    create("mtty", "mtty-1", new_uuid)
    for action in ("add", "bind"):
        device = monitor.poll(5)
        assert device is not None
        assert device.action == action
        assert device.sys_name == new_uuid


def test_pyudev_enumerates_the_simulated_sys(host: Controller) -> None:
    context = pyudev.Context()
    addresses = {d.sys_name for d in context.list_devices(subsystem="pci")}
    assert addresses == set(host.functions())
    assert os.uname().nodename == "fakehost"


def monitor(domain: libvirt.virDomain, command: str) -> str:
    import libvirt_qemu

    text: str = libvirt_qemu.qemuMonitorCommand(
        domain,
        command,
        libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP,
    )
    return text
