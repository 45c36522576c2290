# SPDX-License-Identifier: Apache-2.0
"""Mediated devices are created through libvirt's node devices."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest
from hypothesis import given

from nova_accel.host.execute import action_executor
from nova_accel.model import actions, names
from tests.lab import fakehost
from tests.support import strategies
from tests.support.hosts.simulated import GPU, slot
from virt_hooks.guest import nodedev

UUID = names.mdev_uuid(slot().provider, "slot-0")
NAME = f"mdev_{UUID.replace('-', '_')}"


@pytest.mark.parametrize(
    ("parent", "name"),
    [
        ("0000:41:00.4", "pci_0000_41_00_4"),
        ("10000:41:00.0", "pci_10000_41_00_0"),
        ("0.0.0052", "css_0_0_0052"),
        ("0.1.fffe", "css_0_1_fffe"),
        ("matrix", "ap_matrix"),
        ("mtty", "mtty_mtty"),
    ],
)
def test_a_parent_has_libvirt_s_name(parent: str, name: str) -> None:
    assert nodedev.parent_names(parent)[0] == name


def test_an_mdev_is_found_by_its_uuid() -> None:
    longer = f"{NAME}_0000_41_00_4"
    for devices in ([NAME], ["computer", longer]):
        assert nodedev.mdev_name(UUID, devices) == devices[-1]
    assert nodedev.mdev_name(UUID, [f"{NAME}4", "mdev_"]) is None


@given(strategies.uuids)
def test_the_xml_has_parent_type_and_uuid(uuid: str) -> None:
    root = ElementTree.fromstring(
        nodedev.to_xml("pci_0000_41_00_4", "nvidia-222", uuid)
    )
    assert root.findtext("./parent") == "pci_0000_41_00_4"
    assert root.findtext("./capability[@type='mdev']/uuid") == uuid
    kind = root.find("./capability/type")
    assert kind is not None
    assert kind.attrib == {"id": "nvidia-222"}


# -- a libvirt that can ----------------------------------------------------


class Daemon:
    """A libvirtd on the simulated kernel, with mdevctl behind it."""

    def __init__(self, kernel: fakehost.Controller) -> None:
        self._bus = Path(kernel.root) / "sys"
        self.requests: list[str] = []
        self.wait: Callable[[], object] = lambda: None

    def listDevices(self, capability: str, flags: int) -> list[str]:
        if capability == "mdev_types":
            return [f"pci_{GPU.replace(':', '_').replace('.', '_')}"]
        return [f"mdev_{name.replace('-', '_')}_parent" for name in self._all]

    @property
    def _all(self) -> list[str]:
        directory = self._bus / "bus/mdev/devices"
        return (
            [p.name for p in directory.iterdir()] if directory.exists() else []
        )

    def nodeDeviceCreateXML(self, text: str, flags: int) -> "Daemon":
        self.requests.append(text)
        self.wait()
        root = ElementTree.fromstring(text)
        kind = root.find("./capability/type")
        assert kind is not None
        types = self._bus / f"class/mdev_bus/{GPU}/mdev_supported_types"
        (types / kind.attrib["id"] / "create").write_text(
            root.findtext("./capability/uuid", "")
        )
        return self

    def nodeDeviceLookupByName(self, name: str) -> "Daemon":
        self.requests.append(name)
        return self

    def destroy(self) -> None:
        self.wait()
        (uuid,) = self._all
        (self._bus / "bus/mdev/devices" / uuid / "remove").write_text("1")


MAKE = actions.CreateMdev(parent=GPU, type_id="nvidia-232", uuid=UUID)


def test_libvirt_creates_and_removes_an_mdev(
    kernel: fakehost.Controller,
) -> None:
    daemon = Daemon(kernel)
    devices = nodedev.NodeDevices(lambda: daemon)
    on_host = action_executor.Executor(str(kernel.root), nodedev=devices)
    assert on_host.apply(MAKE)
    assert set(kernel.mdevs()) == {UUID}
    assert len(daemon.requests) == 1
    assert on_host.apply(MAKE.undo())
    assert kernel.mdevs() == {}
    assert daemon.requests[1:] == [f"{NAME}_parent"]
    assert len(kernel.writes()) == 2


def test_a_parent_that_libvirt_does_not_know_is_left_to_the_kernel(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    daemon = Daemon(kernel)
    on_host = action_executor.Executor(
        str(kernel.root), nodedev=nodedev.NodeDevices(lambda: daemon)
    )
    on_host.apply(
        actions.CreateMdev(parent="mtty", type_id="mtty-1", uuid=UUID)
    )
    assert set(kernel.mdevs()) == {UUID}
    assert daemon.requests == []
    assert caplog.text.count("libvirt does not know mtty as a parent") == 1


def test_a_connection_that_is_down_is_left_to_the_kernel(
    kernel: fakehost.Controller,
) -> None:
    def connect() -> Any:
        raise RuntimeError("the hypervisor is unavailable")

    devices = nodedev.NodeDevices(connect)
    on_host = action_executor.Executor(str(kernel.root), nodedev=devices)
    assert on_host.apply(MAKE)
    assert on_host.apply(MAKE.undo())


def test_a_libvirt_that_does_not_answer_is_asked_once(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits a minute for an event that does not come."""
    caplog.set_level("INFO")
    daemon, gone = Daemon(kernel), threading.Event()

    def wait() -> None:
        gone.wait(30)
        # The kernel may belong to the next test by now.
        raise RuntimeError("the client has gone")

    daemon.wait = wait
    devices = nodedev.NodeDevices(lambda: daemon, timeout=0.2)
    assert not devices.create(GPU, "nvidia-232", UUID)
    assert "no answer in 0.2 s" in caplog.text
    assert not devices.create(GPU, "nvidia-232", UUID)
    assert not devices.remove(UUID)
    assert len(daemon.requests) == 1
    gone.set()


# -- a libvirt that can't --------------------------------------------------


@pytest.fixture
def host() -> Iterator[libvirt.virConnect]:
    connected = libvirt.open("test:///default")
    yield connected
    connected.close()


def test_a_real_libvirt_without_such_devices_says_no(
    host: libvirt.virConnect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    devices = nodedev.NodeDevices(lambda: host)
    assert not devices.create("0000:41:00.4", "nvidia-222", UUID)
    assert not devices.remove(UUID)
    assert caplog.text.count("writing to sysfs instead") == 2


def test_a_real_libvirt_s_refusal_is_a_no(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its test driver knows mdev parents, and can't make mdevs on them."""
    caplog.set_level("INFO")
    device = tmp_path / "device.xml"
    device.write_text(
        "<device><name>pci_0000_41_00_4</name><parent>computer</parent>"
        "<capability type='pci'><domain>0</domain><bus>65</bus>"
        "<slot>0</slot><function>4</function><product id='0x2236'/>"
        "<vendor id='0x10de'/><capability type='mdev_types'>"
        "<type id='nvidia-555'><deviceAPI>vfio-pci</deviceAPI>"
        "<availableInstances>1</availableInstances></type></capability>"
        "</capability></device>"
    )
    node = tmp_path / "node.xml"
    node.write_text(f"<node><device file='{device}'/></node>")
    host = libvirt.open(f"test://{node}")
    devices = nodedev.NodeDevices(lambda: host)
    assert not devices.create("0000:41:00.4", "nvidia-555", UUID)
    (message,) = [r.getMessage() for r in caplog.records]
    assert "libvirt can't create mdev" in message
    assert "does not know" not in message
    host.close()
