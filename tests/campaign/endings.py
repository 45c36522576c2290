# SPDX-License-Identifier: Apache-2.0
"""Ends of operations: of those that fail, and those that only Nova decides.

An operation that fails is undone at once: the next server may need what it
had. What is left of it is compared before any pass and any restart.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host.state import notes
from nova_accel.model import attachment
from tests.campaign import guests
from tests.campaign import world as worlds
from virt_hooks.guest import connection

if TYPE_CHECKING:
    from tests.campaign import life as lives

#: State of a server after an operation, unless that failed.
_DONE = {
    "boot": vm_states.ACTIVE,
    "unshelve": vm_states.ACTIVE,
    "rebuild": vm_states.ACTIVE,
    "resize_here": vm_states.RESIZED,
    "resize_there": vm_states.RESIZED,
}
#: Operations that this library undoes alone: all is as before.
_OWN = ("attach", "detach")
_MOVES = ("live_migrate", "evacuate")
OPERATIONS = (*_DONE, *_OWN, *_MOVES)
#: What a failed operation of Nova's may not leave. The rest is Nova's.
_OF_DEVICES = ("claim", "mdev", "VF type", "definition", "note", "inventory")
_GUESTS = {"guest": 0, "definition": fakelibvirt.VIR_DOMAIN_XML_INACTIVE}
#: Kinds of facts, by the directory of a note.
_NOTES = {
    notes.SCRUBBING.directory: "note",
    notes.UNRELEASED.directory: "note",
    notes.FAULTED.directory: "fault",
}
#: Kinds of facts that a kind of fault changes until the next pass: Nova's
#: tracker reads the slots that could not be saved
#: (``AttachAllocations.claim_slot``), a card takes no new server while its
#: notes can't be written, and what refused a write has a note for a pass.
_EXCUSED = {"save": "assigned slot", "note": "inventory", "write": "note"}
#: What a detach says that can't be put back any more.
_LATER = "next periodic task"


class Fact(NamedTuple):
    """State of a device, a provider or a server.

    :ivar name: handle of the device, or uuid of the provider.
    """

    kind: str
    host: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


Facts = frozenset[Fact]


def read(world: worlds.World, server: Any) -> Facts:
    """Return what an operation on a server may change.

    :param server: Nova's object, None for a server that is built.
    """
    facts: set[Fact] = set()
    for host in worlds.HOSTS:
        if host not in world.down:
            facts.update(_list_devices(world, host))
            facts.update(_list_providers(world, host))
    if server is not None:
        facts.add(Fact("task state", "", str(server.task_state)))
        facts |= {
            Fact("attachments", "", key, value)
            for key, value in server.system_metadata.items()
            if attachment.KEY_PREFIX in key
        }
        facts |= {
            Fact("slot", "", slot.provider_uuid, slot.identifier)
            for slot in server.resources or ()
        }
    return frozenset(facts)


def _list_devices(world: worlds.World, host: str) -> Iterator[Fact]:
    for claim in world.computes[host].driver._accel.claims():
        for handle in guests.list_handles([claim]):
            yield Fact("claim", host, handle, claim.consumer)
    for mdev in world.hosts[host].mdevs():
        yield Fact("mdev", host, mdev)
    for address, vgpu_type in world.vgpu_types(host).items():
        yield Fact("VF type", host, address, vgpu_type)
    for domain in world.connection(host)._vms.values():
        for kind, flags in _GUESTS.items():
            use = connection.parse_hostdevs(domain.XMLDesc(flags))
            for handle in (*use.mdevs, *use.functions):
                yield Fact(kind, host, handle, domain.UUIDString())
    for directory, kind in _NOTES.items():
        for path in Path(world.state_dir(host), directory).glob("*.json"):
            yield Fact(kind, host, notes.parse_file_name(path.name))


def _list_providers(world: worlds.World, host: str) -> Iterator[Fact]:
    for provider, slot in world.assigned(host):
        yield Fact("assigned slot", host, provider, slot)
    for provider in world._list_cards(host):
        for name, record in world._get_provider_inventory(provider).items():
            amounts = {key: record[key] for key in ("total", "reserved")}
            yield Fact("inventory", host, provider, f"{name} {amounts}")
    for consumer, counts in world._read_placement(host).items():
        for provider, count in counts.items():
            yield Fact("allocation", host, provider, f"{count} of {consumer}")


def has_failed(
    world: worlds.World,
    step: "lives.Step",
    server: Any,
    error: BaseException | None,
) -> bool:
    """Return whether an operation has failed, and its user reads so.

    What a detach says that the next periodic task does is not left.

    :param server: Nova's object after the operation, None if it is gone.
    """
    if error is not None:
        return step.name != "detach" or _LATER not in str(error)
    if step.name in _OWN or server is None or server.task_state is not None:
        return False
    if step.name in _MOVES:
        return bool(server.host != world.only)
    return bool(server.vm_state != _DONE[step.name])


def list_left(
    world: worlds.World, step: "lives.Step", before: Facts, after: Facts
) -> Iterator[str]:
    """Yield what an operation that failed has left, or taken away."""
    if step.name in _OWN:
        leftovers = before ^ after
    elif any(fact.kind == "guest" for fact in after - before):
        return  # Nova failed once the guest ran: it keeps its devices.
    else:
        leftovers = frozenset()
        for host in worlds.HOSTS:
            if host not in world.down:
                leftovers |= _list_unbacked(world, host, before, after)
        if step.name in _MOVES:
            # A server that moved has no claims at its source. After the
            # release at the other host, Nova reports that one in its next
            # periodic task (_rollback_live_migration of its manager).
            leftovers = frozenset(
                f for f in leftovers & after if f.kind != "inventory"
            )
    excused = _EXCUSED.get(step.faults[0].kind)
    for fact in sorted(f for f in leftovers if f.kind != excused):
        yield f"{step.name}: {fact} is {'left' if fact in after else 'gone'}"


def _list_unbacked(
    world: worlds.World, host: str, before: Facts, after: Facts
) -> set[Fact]:
    """Return new facts that no server explains, and claims that are lost.

    Nova assigns the slots of a resize that failed to its server.
    """
    here, away = world._read_nova(host)
    owners = here | away
    assigned: set[guests.Place] = set()
    assigned.update(*owners.values())

    def has_owner(fact: Fact) -> bool:
        places = assigned
        if fact.kind == "claim":
            places = owners.get(fact.detail, set())
        return bool(guests.find_places(world, host, fact.name) & places)

    changed = {fact for fact in before ^ after if fact.host == host}
    # Both change what a card can give.
    if {"claim", "fault"} & {fact.kind for fact in changed}:
        changed = {fact for fact in changed if fact.kind != "inventory"}
    return {
        fact
        for fact in changed
        if (
            fact.kind in _OF_DEVICES and not has_owner(fact)
            if fact in after
            else fact.kind == "claim" and has_owner(fact)
        )
    }


def was_ended_as_evacuated(host: str, who: str) -> bool:
    """Return whether a server of a host was ended when that returned.

    Nova never ends the migration of an evacuation whose new host dies. If
    the next evacuation fails, the server stays at its host, which ends the
    guest for the first one when it starts again (nova/compute/manager.py,
    _destroy_evacuated_instances).
    """
    migrations = objects.MigrationList.get_by_filters(
        nova_context.get_admin_context(), {"instance_uuid": who}
    )
    arrived = max(
        (m.id for m in migrations if m.dest_compute == host), default=0
    )
    return any(
        migration.migration_type == "evacuation"
        and migration.source_compute == host
        and migration.status == "completed"
        and migration.id > arrived
        for migration in migrations
    )


def given_back(who: str, placement: Any) -> Any:
    """Return the allocations of a server that a revert has not ended."""
    try:
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), who
        )
    except exception.InstanceNotFound:
        return None
    is_reverting = instance.task_state == task_states.RESIZE_REVERTING
    return placement.get(who) if is_reverting else None


def tidy(world: worlds.World) -> Iterator[str]:
    """Do what Nova leaves to its operator, accelerators or not."""
    for host in worlds.HOSTS:
        vms = world.connection(host)._vms
        for domain in list(vms.values()):
            yield f"domain {domain.UUIDString()} on {host}"
            domain._release_devices()
            vms.pop(domain.name(), None)
    for root in world.roots.values():
        path = f"/resource_providers/{root}/allocations"
        for consumer in world.placement.get(path).body["allocations"]:
            yield f"allocations of {consumer}"
            world.placement.delete(f"/allocations/{consumer}")
