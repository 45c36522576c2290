# SPDX-License-Identifier: Apache-2.0
"""An attached device gets an empty port below its root complex."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.geometry import address_space
from tests.support import examples
from tests.unit.nova_accel.geometry.test_address_space import H100
from tests.unit.virt_hooks.guest.test_hostdev import WHOLE
from tests.unit.virt_hooks.guest.topology import host_trees, test_address_bits
from tests.unit.virt_hooks.guest.topology.test_clusters import hostdev
from tests.unit.virt_hooks.guest.topology.test_device_reader import add
from tests.unit.virt_hooks.guest.topology.test_nvlinks import CARD
from tests.unit.virt_hooks.guest.topology.test_picture import (
    ALONE,
    CELLS,
    GPU,
    NIC,
    as_defined,
    mirror,
)
from virt_hooks.guest import libvirt_guest
from virt_hooks.guest.topology import (
    device_reader,
    guest_buses,
    host_tree,
    picture,
    port_windows,
    spare_ports,
)


def define(*devices: host_tree.HostDevice) -> str:
    """Return a domain with the mirror of some devices."""
    drawn = mirror(*devices)
    hostdevs = [hostdev(h, place.bus) for h, place in drawn.places.items()]
    return as_defined(drawn, 4).replace(
        "</devices>", f"{''.join(hostdevs)}</devices>"
    )


def choose(
    device: host_tree.HostDevice, *others: host_tree.HostDevice
) -> dict[str, int]:
    places = spare_ports.choose(
        picture.parse(define(*others)), device, others, CELLS
    )
    return {handle: place.bus for handle, place in places.items()}


OTHER = dataclasses.replace(GPU, handle="0000:1b:00.0")


def test_a_port_below_its_root_complex() -> None:
    assert choose(OTHER, GPU, NIC, ALONE) == {"0000:1b:00.0": 10}
    assert choose(dataclasses.replace(ALONE, handle="x"), GPU, ALONE) == {
        "x": 10
    }


def test_all_functions_of_a_slot_have_one_port() -> None:
    assert choose(NIC, GPU) == {"0000:1a:00.0": 7, "0000:1a:00.1": 7}


def test_a_port_of_the_same_numa_node_otherwise() -> None:
    elsewhere = host_tree.HostDevice(("pci0000:a0",), "y", "y", (), 1)
    assert choose(elsewhere, GPU, ALONE) == {"y": 10}


def test_a_port_of_the_guests_node_after_all_devices_are_detached() -> None:
    text = as_defined(mirror(GPU, ALONE), 4)
    places = spare_ports.choose(picture.parse(text), OTHER, (), CELLS)
    assert [place.bus for place in places.values()] == [6]


def test_without_a_free_port_there_is_no_place() -> None:
    full = define(GPU).replace(
        "</devices>", f"{hostdev('0000:77:00.0', 7)}</devices>"
    )
    drawn = picture.parse(full)
    assert spare_ports.choose(drawn, OTHER, (GPU,), CELLS) == {}


def test_a_device_of_another_node_has_no_place() -> None:
    far = host_tree.HostDevice(("pci0000:a0",), "y", "y", (), 7)
    unknown = dataclasses.replace(far, numa_node=None)
    assert choose(far, GPU, ALONE) == {}
    assert choose(unknown, GPU, ALONE) == {}


@given(devices=host_trees.hosts(), data=st.data())
@settings(deadline=None, max_examples=examples.examples(300))
def test_an_attached_device_changes_no_bus(
    devices: tuple[host_tree.HostDevice, ...], data: st.DataObject
) -> None:
    device = data.draw(st.sampled_from(devices))
    others = [each for each in devices if each != device]
    if not any(d.root_complex == device.root_complex for d in others):
        return
    before = define(*others)
    places = spare_ports.choose(picture.parse(before), device, others, CELLS)
    assert places.keys() == set(device.handles)
    after = before.replace(
        "</devices>",
        "".join(hostdev(h, p.bus) for h, p in places.items()) + "</devices>",
    )
    guest_buses.check(after)
    sibling = next(d for d in others if d.root_complex == device.root_complex)
    drawn = picture.parse(after)
    expander, other = (
        [*drawn.list_above(drawn.places[each.handle].bus)][-1]
        for each in (device, sibling)
    )
    assert expander == other


# -- guests on one bus -------------------------------------------------------

GUEST = """
<domain><os><type machine="{}">hvm</type>{}</os><cpu>{}</cpu><devices>
<controller type="pci" index="0" model="pcie-root"/>
<controller type="pci" index="1" model="pcie-root-port">
<address type="pci" bus="0" slot="1"/></controller>
<controller type="pci" index="2" model="pcie-root-port">
<address type="pci" bus="0" slot="2"/></controller>
</devices></domain>"""
UEFI = '<loader type="pflash">x</loader>'
GIB_1 = "0x40000000 0x7fffffff 0x14220c"
BITS = '<maxphysaddr mode="emulate" bits="46"/>'


def describe(
    machine: str = "pc-q35-7.2", firmware: str = "", bits: str = BITS
) -> str:
    return GUEST.format(machine, firmware, bits)


def build_ports(root: Path, resource: str) -> spare_ports.SparePorts:
    """Return the ports of a host with a card."""
    add(root, "pci0000:64/0000:64:01.0/0000:65:00.0", resource=resource)
    host = test_address_bits.build_host(46)
    return spare_ports.SparePorts(device_reader.DeviceReader(str(root)), host)


def attach(
    root: Path, text: str, resource: str = H100, is_running: bool = True
) -> list[int]:
    """Return the buses that an attached card gets, none for any."""
    places = build_ports(root, resource).place(
        libvirt_guest.Attached(
            uuid="u", text=text, claim=WHOLE, others=(), is_running=is_running
        )
    )
    return [place.bus for place in places.values()]


def test_a_card_gets_the_port_with_room(tmp_path: Path) -> None:
    room = port_windows.parse_resource(H100, address_space.SEABIOS)
    text = port_windows.reserve(describe(), {2: room})
    assert attach(tmp_path, text) == [2]


def test_a_card_with_small_bars_leaves_that_port_free(tmp_path: Path) -> None:
    room = port_windows.parse_resource(H100, address_space.SEABIOS)
    text = port_windows.reserve(describe(), {2: room})
    assert attach(tmp_path, text, resource="") == []


def test_a_stopped_guest_gets_windows_at_its_start(tmp_path: Path) -> None:
    assert attach(tmp_path, describe(), is_running=False) == []


@pytest.mark.parametrize(
    ("text", "existing"),
    [
        (describe(), "2 MiB"),
        (describe(firmware=UEFI, bits=""), "2 MiB"),
        (describe(firmware=UEFI), "32 GiB"),
    ],
)
def test_a_card_without_room_is_refused_with_the_sizes(
    tmp_path: Path, text: str, existing: str
) -> None:
    needed = "16 MiB" if UEFI in text else "32 MiB"
    large = "256 GiB" if UEFI in text else "256.031 GiB"
    with pytest.raises(errors.ClaimError) as refusal:
        attach(tmp_path, text)
    assert str(refusal.value).endswith(
        f"0000:65:00.0 needs a root port with {needed} below 4 GiB and {large}"
        " for prefetchable BARs, and its guest has one with 2 MiB below 4 GiB"
        f" and {existing} for prefetchable BARs while it runs; stop the server"
        " first"
    )


def test_uefi_has_room_for_a_large_bar_by_itself(tmp_path: Path) -> None:
    text = describe(firmware=UEFI)
    assert attach(tmp_path, text, resource=GIB_1) == []


def test_an_unmeasured_firmware_is_refused_from_1_gib_on(
    tmp_path: Path,
) -> None:
    text = describe(machine="virt-7.2", firmware=UEFI, bits="")
    small = "0x1000000 0x1ffffff 0x40200"
    assert attach(tmp_path / "small", text, resource=small) == []
    with pytest.raises(errors.ClaimError):
        attach(tmp_path / "large", text, resource=GIB_1)


@pytest.mark.parametrize(
    ("handle", "ports"),
    [
        ("0000:65:00.0", [1, 2]),
        ("4b20d080-1b54-4048-85b3-a6a62d165c01", []),
    ],
)
def test_uefi_leaves_the_ports_of_a_guest_of_vgpus_as_they_are(
    tmp_path: Path, handle: str, ports: list[int]
) -> None:
    """Their BARs are small; those of a whole card need the range."""
    text = describe(firmware=UEFI).replace(
        "</devices>", f"{hostdev(handle, 1)}</devices>"
    )
    reserved = build_ports(tmp_path, H100).reserve(text, ())
    assert sorted(port_windows.parse(reserved)) == ports


@pytest.mark.parametrize("firmware", ["", UEFI])
def test_the_bits_of_a_guest_count_its_empty_ports(
    tmp_path: Path, firmware: str
) -> None:
    """With one bit less there is no room for a card of the host."""
    device = dataclasses.replace(
        CARD, technology="passthrough", slots=("0000:65:00.0",)
    )
    text = describe(firmware=firmware, bits="")
    demand = address_space.sum_functions([H100])
    bits = build_ports(tmp_path, H100).count_bits(
        text, [WHOLE], [device], picture.Picture()
    )
    space = address_space.parse_space(text)
    need = port_windows.parse_resource(H100, space.firmware)
    for less, chosen in ((0, need), (1, port_windows.Windows())):
        smaller = dataclasses.replace(space, bits=bits - less)
        assert chosen == port_windows.choose(
            smaller, demand, [need], picture.ONE_BUS_PORTS
        )


def test_a_guest_that_may_migrate_has_no_bits_for_them(
    tmp_path: Path,
) -> None:
    ports = build_ports(tmp_path, H100)
    vf = dataclasses.replace(WHOLE, technology="vf")
    assert ports.count_bits(describe(), [vf], (), mirror(GPU)) == 0
