# SPDX-License-Identifier: Apache-2.0
"""Fragmented fleets: cards as their hosts have them, and as Placement does."""

import dataclasses
from collections.abc import Mapping

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.geometry.scheduling import card_state
from nova_accel.model import providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.flavors import offered_devices
from tests.support.placement import clouds, fleets

CATALOG = loader.load()
TYPES = offered_devices.VgpuTypes(CATALOG)
MODELS = (("A40", "equal"), ("L40S", "mixed"), ("A100", "mig"))
# Cards as their hosts have them, by the uuid of the provider.
Devices = Mapping[str, model.Device]


@dataclasses.dataclass(frozen=True)
class World:
    """A fleet of cards of one model, and the cards themselves."""

    fleet: fleet_state.Fleet
    devices: Devices


def make_device(gpu: str, layout: str) -> model.Device:
    capacity = {
        name: c.capacity
        for name, c in clouds.gpu(gpu, layout=layout).capacities.items()
    }
    return card_state.build_empty_card(
        CATALOG, gpu, model.Layout(layout), tuple(sorted(capacity.items()))
    )


def add(device: model.Device, profile: str, handle: str) -> model.Device:
    """Return a card with one more partition of this handle."""
    place = device_capacity.choose_place(device, profile)
    assert place is not None
    device = device_capacity.add_partition(device, profile, place)
    *others, last = device.partitions
    last = dataclasses.replace(last, handle=handle)
    return dataclasses.replace(device, partitions=(*others, last))


def list_possible(device: model.Device) -> set[str]:
    """Return the profiles that have a place on a card."""
    counts = device_capacity.remaining(device)
    return {name for name, count in counts.items() if count > 0}


def make_server(device: model.Device, handle: str) -> nova_api.Server:
    """Return the server of a partition; its uuid is the handle."""
    (partition,) = (p for p in device.partitions if p.handle == handle)
    profile = device.profile(partition.profile)
    assert profile is not None
    specs = {
        f"resources_A:{name}": str(amount)
        for name, amount in profile.charges.items()
        if amount
    }
    specs[f"trait_A:{profile.trait}"] = "required"
    flavor = fleets.server(0, "red", "8Q").flavor
    assert flavor is not None
    return nova_api.Server(
        uuid=handle,
        name=f"vm-{int(handle[:8])}",
        status="ACTIVE",
        flavor=dataclasses.replace(flavor, extra_specs=specs),
    )


def make_world(
    cards: Mapping[str, model.Device], gpu: str, layout: str
) -> World:
    """Return the fleet as the hosts of the cards report it.

    :param cards: by host and address.
    """
    offered, holdings, devices = [], [], {}
    servers: dict[str, nova_api.Server] = {}
    for at, device in cards.items():
        handles = {p.handle for p in device.partitions}
        profiles = {p.name: p for p in device.profiles}
        card = clouds.gpu(
            gpu,
            (),
            *occupancy.build_traits(device, handles),
            *(profiles[name].trait for name in list_possible(device)),
            layout=layout,
            at=at,
        )
        own = [
            providers.Allocation(
                provider=card.uuid,
                consumer=partition.handle,
                amounts=profiles[partition.profile].charges,
            )
            for partition in device.partitions
        ]
        offered.append(fleets.with_used(card, own))
        holdings += own
        servers |= {handle: make_server(device, handle) for handle in handles}
        devices[card.uuid] = device
    fleet = fleet_state.Fleet(
        cloud=offered_devices.Cloud(devices=tuple(offered)),
        holdings=tuple(holdings),
        servers=servers,
    )
    return World(fleet, devices)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw cards of one model on three hosts, fragmented by deletes."""
    gpu, layout = draw(st.sampled_from(MODELS))
    cards, number = {}, 0
    for index in range(draw(st.integers(2, 4))):
        device = make_device(gpu, layout)
        for _ in range(draw(st.integers(1, 5))):
            possible = sorted(list_possible(device))
            if possible:
                number += 1
                device = add(
                    device,
                    draw(st.sampled_from(possible)),
                    fleets.consumer(number),
                )
        handles = [p.handle for p in device.partitions]
        removed = draw(st.sets(st.sampled_from(handles), max_size=3))
        cards[f"node{index % 3}/0000:{index:02x}:00.0"] = (
            device_capacity.remove_partitions(device, removed)
        )
    return make_world(cards, gpu, layout)


def find_profiles(device: model.Device, name: str) -> set[str]:
    """Return a card's profile of the size of a type, by its name."""
    vgpu_type = CATALOG.find(name)
    assert vgpu_type is not None
    return {
        p.name
        for p in device.profiles
        if (p.size, p.instance)
        == (vgpu_type.framebuffer_mb, vgpu_type.instance)
    }


def fill(gpu: str, layout: str, first: int, *names_: str) -> model.Device:
    device = make_device(gpu, layout)
    for number, name in enumerate(names_, first):
        (profile,) = find_profiles(device, name)
        device = add(device, profile, fleets.consumer(number))
    return device
