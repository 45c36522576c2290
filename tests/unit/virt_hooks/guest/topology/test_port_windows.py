# SPDX-License-Identifier: Apache-2.0
"""Windows of empty ports are written into a domain, and read again."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from nova_accel import model
from nova_accel.geometry import address_space
from tests.unit.nova_accel.geometry.test_address_space import H100
from tests.unit.virt_hooks.guest.topology import (
    test_address_bits,
    test_spare_ports,
)
from tests.unit.virt_hooks.guest.topology.test_bars import WINDOWS as LARGE
from tests.unit.virt_hooks.guest.topology.test_device_reader import PORT, add
from tests.unit.virt_hooks.guest.topology.test_nvlinks import CARD
from tests.unit.virt_hooks.guest.topology.test_picture import (
    ALONE,
    GPU,
    mirror,
)
from virt_hooks.guest import hypervisor, libvirt_guest
from virt_hooks.guest.topology import guest_topology, picture, port_windows

DOMAIN = '<domain type="kvm"><name>x</name><devices/></domain>'
WINDOWS = port_windows.Windows(memory=32 << 20, prefetchable=256 << 30)
ROW = (
    '<qemu:device alias="pci.{}"><qemu:frontend><qemu:property'
    ' name="pref64-reserve" type="unsigned" value="{}"/></qemu:frontend>'
    "</qemu:device>"
)


def test_windows_are_read_as_written() -> None:
    text = port_windows.reserve(DOMAIN, dict.fromkeys((7, 10), WINDOWS))
    assert port_windows.parse(text) == {7: WINDOWS, 10: WINDOWS}


def test_the_rest_of_a_domain_is_kept() -> None:
    windows = port_windows.Windows(prefetchable=256 << 30)
    text = port_windows.reserve(DOMAIN, {7: windows})
    row = ROW.format(7, 256 << 30)
    expected = DOMAIN.replace(
        "<domain",
        '<domain xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"',
    ).replace("</domain>", f"<qemu:override>{row}</qemu:override></domain>")
    assert etree.canonicalize(text) == etree.canonicalize(expected)


def test_overrides_of_other_devices_are_kept() -> None:
    other = port_windows.reserve(DOMAIN, {3: WINDOWS}).replace(
        'alias="pci.3"', 'alias="ua-disk"'
    )
    text = port_windows.reserve(other, {7: WINDOWS})
    assert 'alias="ua-disk"' in text
    assert port_windows.parse(text) == {7: WINDOWS}


def test_windows_of_the_firmware_change_nothing() -> None:
    none = {7: port_windows.Windows()}
    assert port_windows.reserve(DOMAIN, none) == DOMAIN
    assert port_windows.parse(DOMAIN) == {}


def test_a_port_without_io_ports_of_the_firmware() -> None:
    text = port_windows.reserve(DOMAIN, {7: WINDOWS}, address_space.OVMF)
    (device,) = etree.fromstring(text).iter("{*}device")
    properties = {
        e.get("name"): e.get("value") for e in device.iter("{*}property")
    }
    assert properties["io-reserve"] == "0"
    assert port_windows.parse(text) == {7: WINDOWS}


def start(root: Path, text: str) -> list[str]:
    """Return what a host defines before the start of a guest."""
    defined: list[str] = []
    host: Any = test_address_bits.build_host(46)
    card = dataclasses.replace(
        CARD, technology="passthrough", slots=("0000:65:00.0",)
    )
    host_state = model.HostState(devices=(card,))
    state: Any = types.SimpleNamespace(state=host_state)
    unused: Any = None
    host.write_instance_config = defined.append
    guest = types.SimpleNamespace(
        name="guest", get_xml_desc=lambda **_: [text, *defined][-1]
    )
    context = libvirt_guest.LayoutContext(
        host=host,
        hypervisor=hypervisor.HypervisorReader(host),
        root=str(root),
        state=state,
        get=unused,
    )
    guest_topology.TopologyLayouts(context).correct_buses(guest)
    return defined


@pytest.mark.parametrize(
    ("size", "windows"),
    [
        ('mode="emulate" bits="43"', LARGE),
        ('mode="passthrough"', LARGE),
        ('mode="emulate" bits="40"', None),
    ],
)
def test_empty_ports_have_room_for_a_card_of_the_host(
    tmp_path: Path, size: str, windows: port_windows.Windows | None
) -> None:
    """Before the start, and again if the guest is resumed."""
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    drawn = mirror(GPU, ALONE)
    text = test_spare_ports.define(GPU, ALONE).replace(
        "<devices>", f"<cpu><maxphysaddr {size}/></cpu><devices>"
    )
    defined = start(tmp_path, text)
    if windows is None:
        assert not defined
        return
    (after,) = defined
    expected = dict.fromkeys(drawn.spare_ports, windows)
    assert port_windows.parse(after) == expected
    assert not start(tmp_path, after)


def test_no_port_with_uefi_has_windows_of_the_firmware(tmp_path: Path) -> None:
    """OVMF's displace BARs of devices at the start, and I/O ports run out."""
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    drawn = mirror(GPU, ALONE)
    size = '<cpu><maxphysaddr mode="emulate" bits="46"/></cpu>'
    text = test_spare_ports.define(GPU, ALONE).replace(
        "<devices>",
        f'<os><loader type="pflash">x</loader></os>{size}<devices>',
    )
    (after,) = start(tmp_path, text)
    small = port_windows.Windows(prefetchable=2 << 20)
    ports = picture.parse(text).list_root_ports()
    large = port_windows.parse_resource(H100, address_space.OVMF)
    assert port_windows.parse(after) == (
        dict.fromkeys(ports, small) | dict.fromkeys(drawn.spare_ports, large)
    )
    assert after.count("io-reserve") == len(ports) > len(drawn.spare_ports)


ONE_BUS = """
<domain><os><type machine="pc-q35-7.2">hvm</type></os>
<cpu><maxphysaddr mode="emulate" bits="46"/></cpu><devices>{}
<interface><address type="pci" bus="0x05" slot="0"/></interface></devices>
</domain>"""


def list_ports(count: int) -> str:
    return "".join(
        f'<controller type="pci" index="{n}" model="pcie-root-port">'
        f'<address type="pci" bus="0" slot="{n}"/></controller>'
        for n in range(1, count + 1)
    )


def test_the_last_empty_ports_of_one_bus_have_room(tmp_path: Path) -> None:
    """libvirt gives volumes and network interfaces the first ones."""
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    (after,) = start(tmp_path, ONE_BUS.format(list_ports(6)))
    assert port_windows.parse(after) == {4: LARGE, 6: LARGE}
    assert not start(tmp_path, after)


def test_a_guest_of_another_machine_has_no_windows(tmp_path: Path) -> None:
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    text = ONE_BUS.format(list_ports(6)).replace("pc-q35-7.2", "pc")
    assert not start(tmp_path, text)
