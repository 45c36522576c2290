# SPDX-License-Identifier: Apache-2.0
"""Collected states for audits: a host with servers in each state."""

import dataclasses
import uuid
from collections.abc import Callable, Iterable

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.model import names, providers
from nova_accel.model.domains import Domain
from placement_sync.audit import collected_state
from placement_sync.client import nova_api
from tests.support import strategies

ROOT = strategies.ROOT
NO_SERVER = "dddddddd-0000-4000-8000-00000000000d"
OTHER = "eeeeeeee-0000-4000-8000-00000000000e"
ELSEWHERE = "compute-2"
SLOTS = 6
CARDS = ("0000:3b:00.0", "0000:af:00.0")
NVIDIA, WHOLE = "0000:41:00.0", "0000:5e:00.0"
FUNCTIONS = tuple(f"0000:41:00.{n}" for n in range(1, 7))
PROFILE = "P-1"
# States of a server between its creation and its removal.
LIVES = (
    "running",
    "stopped",
    "scheduled",
    "claimed",
    "made",
    "defined",
    "leaving",
    "coming",
    "evacuated",
)


def card(address: str) -> model.Device:
    """Return a card that is an mdev parent itself, without mdevs."""
    return _device(address, "mdev", names.slot_names(SLOTS))


def _device(
    address: str, technology: str, slots: tuple[str, ...]
) -> model.Device:
    return model.Device(
        address=address,
        plugin="mdev",
        technology=technology,
        vendor="test",
        model="Test",
        resource_class=names.GPU_CLASS,
        counters={names.GPU_CLASS: len(slots)},
        slots=slots,
    )


EMPTY = collected_state.CollectedState(
    is_stock=False,
    root=ROOT,
    providers=(),
    allocations=(),
    claims=(),
    servers={},
    migrations=(),
    domains=(),
    host=model.HostState(
        devices=(
            *map(card, CARDS),
            _device(NVIDIA, "vendor-vfio", FUNCTIONS),
            _device(WHOLE, "passthrough", (WHOLE,)),
        )
    ),
    everywhere=(),
    gone=frozenset(),
)


def provider(address: str) -> str:
    """Return the uuid of a device's provider."""
    return names.provider_uuid(ROOT.uuid, address)


def handle(address: str, slot: str) -> str:
    """Return the handle of the partition in a slot of a device."""
    if address in CARDS:
        return names.mdev_uuid(provider(address), slot)
    return slot


def claim(
    consumer: str,
    address: str,
    slot: str,
    state: model.ClaimState = model.ClaimState.MADE,
) -> model.Claim:
    """Return a server's claim."""
    device = EMPTY.host.device(address) if EMPTY.host else None
    assert device is not None
    return model.Claim(
        consumer=consumer,
        provider=provider(address),
        device=address,
        profile=PROFILE,
        slot=slot,
        parent=address,
        handle=handle(address, slot),
        technology=device.technology,
        state=state,
    )


def allocation(consumer: str, address: str) -> providers.Allocation:
    """Return the allocation of one slot of a device."""
    return providers.Allocation(
        provider=provider(address),
        consumer=consumer,
        amounts={names.GPU_CLASS: 1},
    )


def domain(
    consumer: str, handles: Iterable[str], is_running: bool = True
) -> Domain:
    """Return a guest."""
    device_handles = frozenset(handles)
    return Domain(
        uuid=consumer,
        name=f"instance-{consumer[:8]}",
        is_running=is_running,
        mdevs=frozenset(h for h in device_handles if ":" not in h),
        functions=frozenset(h for h in device_handles if ":" in h),
    )


def grown(
    state: collected_state.CollectedState,
    *,
    allocations: Iterable[providers.Allocation] = (),
    claims: Iterable[model.Claim] = (),
    servers: Iterable[tuple[str, nova_api.Server | None]] = (),
    migrations: Iterable[nova_api.Migration] = (),
    domains: Iterable[Domain] = (),
) -> collected_state.CollectedState:
    """Return a collected state with more records."""
    return dataclasses.replace(
        state,
        allocations=(*(state.allocations or ()), *allocations),
        claims=(*(state.claims or ()), *claims),
        servers={**(state.servers or {}), **dict(servers)},
        migrations=(*(state.migrations or ()), *migrations),
        domains=(*(state.domains or ()), *domains),
    )


def made(
    state: collected_state.CollectedState, address: str, slot: str
) -> collected_state.CollectedState:
    """Return a collected state with one more partition in the kernel."""
    if address == WHOLE:
        return state
    return with_partitions(
        state,
        address,
        lambda partitions: (
            *partitions,
            model.Partition(
                profile=PROFILE, parent=address, handle=handle(address, slot)
            ),
        ),
    )


def without_partition(
    state: collected_state.CollectedState, gone: str
) -> collected_state.CollectedState:
    """Return a collected state without a partition."""
    assert state.host is not None
    for device in state.host.devices:
        state = with_partitions(
            state,
            device.address,
            lambda partitions: tuple(
                p for p in partitions if p.handle != gone
            ),
        )
    return state


def with_partitions(
    state: collected_state.CollectedState,
    address: str,
    change: Callable[
        [tuple[model.Partition, ...]], tuple[model.Partition, ...]
    ],
) -> collected_state.CollectedState:
    """Return a collected state with changed partitions of a device."""
    assert state.host is not None
    devices = tuple(
        dataclasses.replace(d, partitions=change(d.partitions))
        if d.address == address
        else d
        for d in state.host.devices
    )
    return dataclasses.replace(
        state, host=dataclasses.replace(state.host, devices=devices)
    )


def lived(
    state: collected_state.CollectedState,
    life: str,
    server: str,
    address: str,
    slot: str,
) -> collected_state.CollectedState:
    """Return a collected state with one more server in some state."""
    here = nova_api.Server(uuid=server, node=ROOT.name)
    there = nova_api.Server(uuid=server, node=ELSEWHERE)
    holder, claim_state, stages = (
        server,
        model.ClaimState.MADE,
        "claim make define",
    )
    moves: tuple[nova_api.Migration, ...] = ()
    match life:
        case "scheduled":
            here, stages = nova_api.Server(uuid=server), ""
        case "claimed":
            claim_state, stages = model.ClaimState.PLANNED, "claim"
        case "made":
            stages = "claim make"
        case "leaving":
            holder = str(uuid.uuid5(uuid.UUID(server), "leaving"))
            moves = (_move(holder, server, "migrating"),)
        case "coming":
            here, stages = there, "claim make"
            move = str(uuid.uuid5(uuid.UUID(server), "move"))
            moves = (_move(move, server, "pre-migrating"),)
        case "evacuated":
            here, stages = there, ""
            move = str(uuid.uuid5(uuid.UUID(server), "move"))
            moves = (_move(move, server, "done"),)
    state = grown(
        state,
        allocations=[allocation(holder, address)],
        servers=[(server, here)],
        migrations=moves,
    )
    if "claim" in stages:
        state = grown(
            state, claims=[claim(server, address, slot, claim_state)]
        )
    if "make" in stages:
        state = made(state, address, slot)
    if "define" in stages:
        handles = {handle(address, slot)}
        is_running = life in ("running", "leaving")
        state = grown(state, domains=[domain(server, handles, is_running)])
    return state


def _move(move: str, server: str, status: str) -> nova_api.Migration:
    return nova_api.Migration(uuid=move, server=server, status=status)


PLACES = tuple(
    (address, slot)
    for address, slots in (
        *((c, names.slot_names(SLOTS - 1)) for c in CARDS),
        (NVIDIA, FUNCTIONS[:-1]),
        (WHOLE, (WHOLE,)),
    )
    for slot in slots
)


@st.composite
def worlds(
    draw: st.DrawFn, lives: tuple[str, ...] = LIVES
) -> collected_state.CollectedState:
    """Draw a consistent state; the last slot of each card is free."""
    places = draw(st.lists(st.sampled_from(PLACES), unique=True, max_size=6))
    state = EMPTY
    for number, (address, slot) in enumerate(places):
        life = draw(st.sampled_from(lives))
        server = str(uuid.UUID(int=(number + 1) << 64))
        state = lived(state, life, server, address, slot)
    return state
