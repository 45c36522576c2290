# SPDX-License-Identifier: Apache-2.0
"""Fleets of any number of cards, in all states, the same each time."""

import dataclasses
from collections.abc import Iterator

from nova_accel.catalog import loader
from nova_accel.geometry import occupancy
from nova_accel.model import names, providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import drain_notes, fleet_state
from placement_sync.fleet.flavors import offered_devices
from tests.support.placement import clouds, fleets

CARDS_PER_HOST = 8
PROJECTS = {
    "a1": "render",
    "b2": "research",
    "c3": "web",
    "d4": "design",
}
_MIG = ("CUSTOM_VGPU_NVIDIA_A100_1_5C", "CUSTOM_VGPU_NVIDIA_A100_3_20C")
# Sizes on a card in equal mode, by its number; one card has 32 servers.
_SIZES = (
    ("8Q",) * 6,
    ("4Q",) * 7,
    (),
    ("8Q",) * 2,
    ("1Q",) * 32,
    ("8Q",) * 4,
    ("2Q",) * 11,
)
# States of some cards, by number; the fleet is read by its first number.
_STATES = {
    5: names.FAULTED_TRAIT,
    8: names.DRAINED_TRAIT,
    19: names.MISSING_TRAIT,
    26: names.UNKNOWN_TRAIT,
}
_PERIOD = 61
_SUFFIX = "-with-a-name-that-its-user-made-long"


def build_fleet(
    count: int, prefix: str = "gpu-", suffix: str = _SUFFIX
) -> fleet_state.Fleet:
    """Return a fleet of so many cards, eight to a host.

    :param prefix: that of each host's name.
    :param suffix: that of some servers' names.
    """
    cards = list(_list_cards(count, prefix))
    holdings = [holding for _, own in cards for holding in own]
    owners: dict[str, nova_api.Server] = {}
    for number, (_, own) in enumerate(cards):
        for index, holding in enumerate(own):
            project = list(PROJECTS)[(number + index // 2) % len(PROJECTS)]
            owners[holding.consumer] = _build_server(
                holding, project, suffix if number % 10 == 3 else ""
            )
    devices = tuple(fleets.with_used(card, own) for card, own in cards)
    note = drain_notes.DrainNote(
        reason="fan fails", author="ops", since="2026-05-02T05:00:00+00:00"
    )
    hosts = sorted({device.host for device in devices})
    return fleet_state.Fleet(
        cloud=offered_devices.Cloud(
            devices=devices,
            disabled=frozenset(map(clouds.root, hosts[3::40])),
        ),
        holdings=tuple(holdings),
        servers=owners,
        project_names=PROJECTS,
        drains={
            device.uuid: (note,)
            for device in devices
            if names.DRAINED_TRAIT in device.traits
        },
    )


def _list_cards(
    count: int, prefix: str
) -> Iterator[
    tuple[offered_devices.OfferedDevice, list[providers.Allocation]]
]:
    for number in range(count):
        host, slot = divmod(number, CARDS_PER_HOST)
        at = f"{prefix}{host + 1:03d}/0000:{0x21 + 0x10 * slot:02x}:00.0"
        state = _STATES.get(number % _PERIOD)
        traits = [state] if state else []
        if slot == CARDS_PER_HOST - 1:
            yield _build_mig_card(number, at, traits)
            continue
        sizes = _SIZES[number % len(_SIZES)]
        fits = [] if state or len(sizes) in (6, 32) else [*sizes[:1], "1Q"]
        card = clouds.gpu(fleets.MODEL, fits, *traits, at=at)
        yield (
            card,
            [
                fleets.holding(card, 100 * number + index, size)
                for index, size in enumerate(sizes)
            ],
        )


def _build_mig_card(
    number: int, at: str, traits: list[str]
) -> tuple[offered_devices.OfferedDevice, list[providers.Allocation]]:
    catalog = loader.load()
    places = [
        f"{occupancy.PLACE_PREFIX}{start}_1_{t.removeprefix(names.CUSTOM)}"
        for start, t in zip((0, 4), _MIG, strict=True)
    ]
    fits = [] if traits else ["2-10C"]
    card = clouds.gpu("A100", fits, *places, *traits, layout="mig", at=at)
    return card, [
        providers.Allocation(
            provider=card.uuid,
            consumer=fleets.consumer(100 * number + index),
            amounts=catalog.charges(catalog.by_trait()[trait]),
        )
        for index, trait in enumerate(_MIG)
    ]


def _build_server(
    holding: providers.Allocation, project: str, suffix: str
) -> nova_api.Server:
    memory = holding.amounts[names.GPU_MEMORY_CLASS]
    sizes = [s for s, size in fleets.SIZES.items() if size == memory]
    server = fleets.server(int(holding.consumer[:8]), project, *sizes)
    return dataclasses.replace(
        server, name=f"{PROJECTS[project]}-{server.name[3:]}{suffix}"
    )
