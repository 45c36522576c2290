# SPDX-License-Identifier: Apache-2.0
"""Ledger: slots of one host by consumer, in each state that Nova has."""

import datetime
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from nova import objects

from nova_accel import model
from virt_hooks.instance import ledger
from virt_hooks.instance.ledger import Doubt, FailedMove, State

objects.register_all()
HERE, THERE = "here", "there"
STARTED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATER = STARTED + datetime.timedelta(hours=1)
OLD, NEW = "old", "new"


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


SERVER, MOVED = uuid_of("server"), uuid_of("move")
CARD, OTHER_CARD = uuid_of("card"), uuid_of("other card")
# Slots before and after a move between hosts have different providers.
PROVIDERS = {NEW: OTHER_CARD}
VGPU = "VGPU"


def slots(*names: str) -> ledger.Slots:
    return tuple(
        model.Slot(
            provider=PROVIDERS.get(name, CARD),
            resource_class=VGPU,
            identifier=name,
        )
        for name in names
    )


def resources(assigned: ledger.Slots) -> Any:
    return objects.ResourceList(
        objects=[
            objects.Resource(
                provider_uuid=slot.provider,
                resource_class=slot.resource_class,
                identifier=slot.identifier,
            )
            for slot in assigned
        ]
    )


def move(number: int = 1, new: ledger.Slots | None = None) -> Any:
    """Return the context of a migration, from slot ``old`` to ``new``."""
    return objects.MigrationContext(
        migration_id=number,
        old_resources=resources(slots(OLD)),
        new_resources=resources(slots(NEW) if new is None else new),
    )


def server(**changes: Any) -> Any:
    """Return an active server of this host in slot ``old``."""
    fields = {
        "uuid": SERVER,
        "host": HERE,
        "vm_state": "active",
        "task_state": None,
        "launched_at": STARTED,
        "terminated_at": None,
        "migration_context": None,
        "assigned": slots(OLD),
    } | changes
    assigned = fields.pop("assigned")
    return objects.Instance(resources=resources(assigned), **fields)


def migration(source: str, destination: str, **changes: Any) -> Any:
    """Return a resize that is in progress."""
    fields = {
        "id": 1,
        "uuid": MOVED,
        "instance_uuid": SERVER,
        "source_compute": source,
        "dest_compute": destination,
        "status": "post-migrating",
        "migration_type": "resize",
    }
    return objects.Migration(**fields | changes)


def moving(**changes: Any) -> Any:
    """Return a server with the context of its migration."""
    return server(**{"migration_context": move()} | changes)


def resized(**changes: Any) -> Any:
    fields = {"vm_state": "resized", "assigned": slots(NEW)}
    return moving(**fields | changes)


LIVE = {"migration_type": "live-migration", "status": "running"}
EVACUATION = {"migration_type": "evacuation", "status": "accepted"}
IN_PLACE = migration(HERE, HERE)
DONE_IN_PLACE = migration(HERE, HERE, status="finished")
LEFT = migration(HERE, THERE)
FAILED_AWAY = migration(HERE, THERE, status="error")
CAME = migration(THERE, HERE)
LIVE_LEAVING = migration(HERE, THERE, **LIVE)
LIVE_ARRIVING = migration(THERE, HERE, **LIVE)

Expected = dict[str, tuple[State, Doubt, ledger.Slots]]
OWN: Expected = {SERVER: (State.BUILT, Doubt.NONE, slots(OLD))}
UNBUILT: Expected = {SERVER: (State.UNBUILT, Doubt.NONE, slots(OLD))}
NOTHING: Expected = {MOVED: (State.OLD_SIZE, Doubt.NONE, ())}

TABLE: tuple[tuple[str, Any, tuple[Any, ...], Expected], ...] = (
    ("plain", server(), (), OWN),
    (
        "building",
        server(vm_state="building", launched_at=None),
        (),
        {SERVER: (State.UNBUILT, Doubt.NEVER_STARTED, slots(OLD))},
    ),
    (
        "build failed",
        server(vm_state="error", launched_at=None),
        (),
        {SERVER: (State.UNBUILT, Doubt.NEVER_STARTED, slots(OLD))},
    ),
    (
        "in error",
        server(vm_state="error"),
        (),
        {SERVER: (State.BUILT, Doubt.FAILED, slots(OLD))},
    ),
    ("shelved", server(vm_state="shelved"), (), OWN),
    (
        "offloaded",
        server(vm_state="shelved_offloaded", host=""),
        (),
        {},
    ),
    (
        "unshelving",
        server(vm_state="shelved_offloaded", task_state="spawning"),
        (),
        UNBUILT,
    ),
    ("rebuilding", server(task_state="rebuild_spawning"), (), OWN),
    (
        "resizing here, not begun",
        moving(task_state="resize_migrating"),
        (IN_PLACE,),
        OWN | NOTHING,
    ),
    (
        "resizing here, new size",
        moving(task_state="resize_finish", assigned=slots(NEW)),
        (IN_PLACE,),
        {SERVER: (State.UNBUILT, Doubt.NONE, slots(NEW))} | NOTHING,
    ),
    (
        "resized here, not confirmed",
        resized(),
        (DONE_IN_PLACE,),
        {
            SERVER: (State.BUILT, Doubt.NONE, slots(NEW)),
            MOVED: (State.OLD_SIZE, Doubt.NONE, slots(OLD)),
        },
    ),
    (
        "resized here in a slot of both sizes",
        resized(
            assigned=slots(OLD, NEW),
            migration_context=move(new=slots(OLD, NEW)),
        ),
        (DONE_IN_PLACE,),
        {SERVER: (State.BUILT, Doubt.NONE, slots(OLD, NEW))} | NOTHING,
    ),
    (
        "confirming here",
        resized(task_state="resize_confirming"),
        (migration(HERE, HERE, status="confirming"),),
        {
            SERVER: (State.BUILT, Doubt.NONE, slots(NEW)),
            MOVED: (State.OLD_SIZE, Doubt.NONE, slots(OLD)),
        },
    ),
    (
        "reverted here",
        moving(),
        (DONE_IN_PLACE,),
        OWN,
    ),
    (
        "resize here failed early, with its context left",
        moving(vm_state="error"),
        (migration(HERE, HERE, status="error"),),
        {
            SERVER: (State.BUILT, Doubt.FAILED, slots(OLD)),
            MOVED: (State.OLD_SIZE, Doubt.FAILED, ()),
        },
    ),
    (
        "resize here failed late, with its context left",
        moving(vm_state="error", assigned=slots(NEW)),
        (migration(HERE, HERE, status="error"),),
        {
            SERVER: (State.BUILT, Doubt.FAILED, slots(NEW)),
            MOVED: (State.OLD_SIZE, Doubt.FAILED, ()),
        },
    ),
    (
        "cold migration away, on the way",
        moving(host=THERE, task_state="resize_migrated"),
        (LEFT,),
        {SERVER: (State.AWAY, Doubt.FAILED, slots(OLD))} | NOTHING,
    ),
    (
        "cold migration away, not confirmed",
        resized(host=THERE),
        (migration(HERE, THERE, status="finished"),),
        {SERVER: (State.AWAY, Doubt.FAILED, slots(OLD))} | NOTHING,
    ),
    (
        "confirming there",
        resized(host=THERE),
        (migration(HERE, THERE, status="confirming"),),
        {SERVER: (State.AWAY, Doubt.FAILED, slots(OLD))} | NOTHING,
    ),
    (
        "reverting back to here",
        moving(host=HERE, task_state="resize_reverting"),
        (migration(HERE, THERE, status="reverting"),),
        OWN | NOTHING,
    ),
    (
        "cold migration away failed there",
        moving(host=THERE, vm_state="error"),
        (FAILED_AWAY,),
        {
            SERVER: (State.AWAY, Doubt.FAILED, slots(OLD)),
            MOVED: (State.OLD_SIZE, Doubt.FAILED, ()),
        },
    ),
    (
        "failed migration away, and a later one",
        moving(host=THERE, migration_context=move(2)),
        (FAILED_AWAY,),
        {SERVER: (State.AWAY, Doubt.FAILED, slots())} | NOTHING,
    ),
    (
        "cold migration to here, not arrived",
        moving(host=THERE, task_state="resize_migrating"),
        (CAME,),
        {SERVER: (State.ARRIVING, Doubt.NONE, ())},
    ),
    (
        "cold migration to here, arrived",
        moving(task_state="resize_finish", assigned=slots(NEW)),
        (CAME,),
        {SERVER: (State.UNBUILT, Doubt.NONE, slots(NEW))},
    ),
    (
        "cold migration to here, not confirmed",
        resized(),
        (migration(THERE, HERE, status="finished"),),
        {SERVER: (State.BUILT, Doubt.NONE, slots(NEW))},
    ),
    (
        "live migration, on the source",
        moving(task_state="migrating"),
        (LIVE_LEAVING,),
        OWN | NOTHING,
    ),
    (
        "live migration, on the source after the guest has left",
        moving(host=THERE, assigned=slots(NEW)),
        (LIVE_LEAVING,),
        {SERVER: (State.AWAY, Doubt.FAILED, slots(OLD))} | NOTHING,
    ),
    (
        "live migration, on the destination",
        moving(host=THERE, task_state="migrating"),
        (LIVE_ARRIVING,),
        {SERVER: (State.ARRIVING, Doubt.NONE, slots(NEW))},
    ),
    (
        "live migration, arrived and not saved completely",
        moving(task_state="migrating", assigned=slots(NEW)),
        (LIVE_ARRIVING,),
        {SERVER: (State.BUILT, Doubt.NONE, slots(NEW) * 2)},
    ),
    (
        "live migration that its dead source has never ended",
        moving(host=THERE),
        (LIVE_ARRIVING,),
        {},
    ),
    (
        "failed migration away, and a live one back",
        server(
            host=THERE,
            task_state="migrating",
            migration_context=move(2),
        ),
        (
            FAILED_AWAY,
            migration(THERE, HERE, id=2, **LIVE),
        ),
        {SERVER: (State.ARRIVING, Doubt.NONE, slots(NEW))} | NOTHING,
    ),
    (
        "live migration back, listed before a failed one away",
        moving(host=THERE, task_state="migrating", migration_context=move(2)),
        (migration(THERE, HERE, id=2, **LIVE), FAILED_AWAY),
        {SERVER: (State.ARRIVING, Doubt.NONE, slots(NEW))} | NOTHING,
    ),
    (
        "evacuation from here, under way",
        moving(vm_state="error", task_state="rebuild_spawning"),
        (migration(HERE, THERE, **EVACUATION),),
        {
            SERVER: (State.BUILT, Doubt.FAILED, slots(OLD)),
            MOVED: (State.OLD_SIZE, Doubt.FAILED, ()),
        },
    ),
    (
        "evacuated from here",
        server(host=THERE, assigned=slots(NEW)),
        (),
        {},
    ),
    (
        "evacuation to here, under way",
        moving(host=THERE, task_state="rebuild_spawning"),
        (migration(THERE, HERE, **EVACUATION),),
        {SERVER: (State.ARRIVING, Doubt.NONE, ())},
    ),
    (
        "guest ended, and the delete failed",
        server(vm_state="error", terminated_at=LATER),
        (),
        {SERVER: (State.BUILT, Doubt.ENDED, slots(OLD))},
    ),
    (
        "guest ended at once",
        server(terminated_at=STARTED),
        (),
        {SERVER: (State.BUILT, Doubt.ENDED, slots(OLD))},
    ),
    (
        "rebuilt after a delete that failed",
        server(launched_at=LATER, terminated_at=STARTED),
        (),
        OWN,
    ),
)


def build(
    instances: Iterable[Any], migrations: Iterable[Any]
) -> ledger.Ledger:
    return ledger.build(HERE, {i.uuid: i for i in instances}, migrations)


@pytest.mark.parametrize(
    ("instance", "migrations", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_each_state_of_nova(
    instance: Any, migrations: tuple[Any, ...], expected: Expected
) -> None:
    holdings = build((instance,), migrations)
    assert {
        consumer: (each.state, each.doubt, each.slots)
        for consumer, each in holdings.items()
    } == expected
    assert {each.server for each in holdings.values()} <= {SERVER}


def test_a_deleted_server_with_a_migration_has_nothing() -> None:
    assert build((), (LEFT, IN_PLACE, LIVE_ARRIVING)) == {}
    unknown = migration(HERE, THERE, instance_uuid=uuid_of("deleted"))
    moved = server(host=THERE, migration_context=move())
    assert build((moved,), (unknown, LEFT)) == build((moved,), (LEFT,)) != {}


CONTESTED = (
    server(uuid=uuid_of("sure")),
    server(uuid=uuid_of("failed"), vm_state="error"),
    server(uuid=uuid_of("never started"), launched_at=None),
    server(uuid=uuid_of("ended"), terminated_at=LATER),
)


@pytest.mark.parametrize("least", range(len(CONTESTED)))
def test_a_contested_slot_is_of_the_least_doubtful(least: int) -> None:
    servers = CONTESTED[least:]
    holdings = build(reversed(servers), ())
    assert [each.uuid for each in servers if holdings[each.uuid].slots] == [
        servers[0].uuid
    ]


def test_equally_doubtful_servers_both_keep_a_slot() -> None:
    holdings = build((server(), server(uuid=uuid_of("second"))), ())
    assert len(holdings) == 2
    assert all(each.slots == slots(OLD) for each in holdings.values())


def test_a_server_keeps_its_other_slots() -> None:
    failed = server(
        uuid=uuid_of("failed"), vm_state="error", assigned=slots(OLD, "other")
    )
    assert build((server(), failed), ())[failed.uuid].slots == slots("other")


ARRIVED = migration(THERE, HERE, **LIVE | {"status": "completed"})
ARRIVED_LATER = migration(THERE, HERE, id=2, **LIVE | {"status": "completed"})
NOT_ARRIVED = migration(THERE, HERE, **LIVE | {"status": "error"})
SECOND = uuid_of("second move")
BACK = migration(HERE, THERE, id=2, uuid=SECOND)


@pytest.mark.parametrize(
    ("instance", "migrations", "owners"),
    [
        (None, (), {SERVER}),
        (server(host=THERE), (LEFT, BACK), {SERVER, MOVED, SECOND}),
        (server(host=THERE), (CAME,), {SERVER}),
        (server(host=THERE), (ARRIVED, BACK), {SERVER, SECOND}),
        (server(host=THERE), (NOT_ARRIVED, BACK), set()),
        (None, (NOT_ARRIVED,), set()),
        (server(), (NOT_ARRIVED,), {SERVER}),
        (
            server(host=THERE, task_state="migrating"),
            (LIVE_ARRIVING,),
            {SERVER},
        ),
        (server(host=THERE), (NOT_ARRIVED, ARRIVED_LATER), {SERVER}),
    ],
)
def test_owners_of_the_allocations_of_a_consumer(
    instance: Any, migrations: tuple[Any, ...], owners: Iterable[str]
) -> None:
    assert owners == ledger.find_owners(
        HERE, SERVER, migrations, {SERVER: instance}.get
    )


ON_OLD, ON_NEW = (CARD, VGPU), (OTHER_CARD, VGPU)
ROOT = (uuid_of("compute node"), "VCPU")


@pytest.mark.parametrize(
    ("current", "new", "allocated", "claimed", "expected"),
    [
        (slots(OLD), slots(NEW), {ON_NEW}, (), FailedMove.LACKS_NEW),
        (slots(OLD), slots(NEW), {ON_NEW, ROOT}, (), FailedMove.LACKS_NEW),
        # Nova has allocated the old ones again, or both.
        (slots(OLD), slots(NEW), {ON_OLD}, (), FailedMove.KEEPS_OLD),
        (slots(OLD), slots(NEW), {ON_OLD, ON_NEW}, (), FailedMove.KEEPS_OLD),
        (slots(OLD), slots(NEW), set(), (), FailedMove.KEEPS_OLD),
        # The new ones are another server's by now.
        (slots(OLD), slots(NEW), {ON_NEW}, slots(NEW), FailedMove.KEEPS_OLD),
        # Of one class on one card the allocations say nothing.
        (slots(OLD), slots("other"), {ON_OLD}, (), FailedMove.KEEPS_OLD),
        (slots(NEW), slots(NEW), {ON_NEW}, (), FailedMove.HAS_NEW),
        (slots("third"), slots(NEW), {ON_NEW}, (), FailedMove.OTHER),
        (slots(OLD), (), {ON_OLD}, (), FailedMove.KEEPS_OLD),
        (slots(OLD), (), {ROOT}, (), FailedMove.KEEPS_OLD),
        ((), (), set(), (), FailedMove.HAS_NEW),
    ],
)
def test_slots_after_a_failed_move(
    current: ledger.Slots,
    new: ledger.Slots,
    allocated: Iterable[tuple[str, str]],
    claimed: ledger.Slots,
    expected: FailedMove,
) -> None:
    instance = server(assigned=current, migration_context=move(new=new))
    for last in (IN_PLACE, CAME):
        assert expected is ledger.find_failed_move(
            HERE, instance, last, lambda: allocated, claimed
        )


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [
        ((CARD, "CUSTOM_LARGE"), FailedMove.LACKS_NEW),
        (ON_OLD, FailedMove.KEEPS_OLD),
    ],
)
def test_sizes_on_one_card_are_compared_by_class(
    allocated: tuple[str, str], expected: FailedMove
) -> None:
    """MIG profiles of one card have classes of their own."""
    large = model.Slot(
        provider=CARD, resource_class="CUSTOM_LARGE", identifier="large"
    )
    instance = server(migration_context=move(new=(large,)))
    assert expected is ledger.find_failed_move(
        HERE, instance, IN_PLACE, lambda: {allocated, ROOT}, ()
    )


@pytest.mark.parametrize(
    ("changes", "last", "is_failed"),
    [
        ({}, IN_PLACE, True),
        ({"vm_state": "error"}, CAME, True),
        ({"task_state": "rebooting_hard"}, IN_PLACE, True),
        ({}, None, False),
        ({}, LEFT, False),
        ({"vm_state": "resized"}, IN_PLACE, False),
        ({"task_state": "resize_prep"}, IN_PLACE, False),
        ({"task_state": "resize_finish"}, CAME, False),
    ],
)
def test_a_move_that_is_not_over_has_not_failed(
    changes: dict[str, str], last: Any, is_failed: bool
) -> None:
    failed = ledger.find_failed_move(
        HERE, moving(**changes), last, lambda: {ON_NEW}, ()
    )
    assert (failed is FailedMove.LACKS_NEW) is is_failed


def test_slots_that_a_move_has_released() -> None:
    both = move(new=slots("third", OLD))
    assert ledger.list_released(moving()) == slots(OLD)
    assert ledger.list_released(server(migration_context=both)) == ()
    assert ledger.list_released(server()) == ()
