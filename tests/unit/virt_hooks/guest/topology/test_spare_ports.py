# SPDX-License-Identifier: Apache-2.0
"""An attached device gets an empty port below its root complex."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples
from tests.unit.virt_hooks.guest.topology import host_trees
from tests.unit.virt_hooks.guest.topology.test_clusters import hostdev
from tests.unit.virt_hooks.guest.topology.test_picture import (
    ALONE,
    CELLS,
    GPU,
    NIC,
    as_defined,
    mirror,
)
from virt_hooks.guest.topology import (
    guest_buses,
    host_tree,
    picture,
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
