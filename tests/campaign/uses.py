# SPDX-License-Identifier: Apache-2.0
"""Operations of users on a server that is well, after the faults."""

from collections.abc import Callable, Iterator
from typing import Any

from nova import objects
from nova.compute import vm_states

from nova_accel import errors
from tests.campaign import kinds
from tests.campaign import life as lives
from tests.campaign import world as worlds
from tests.functional.nova.support.technologies import Technology

#: An action of Nova's API, its arguments, and the state that follows.
Use = tuple[str, Any, str]

_FIRST: dict[str, tuple[Use, ...]] = {
    vm_states.ACTIVE: (),
    vm_states.STOPPED: (("os-start", None, vm_states.ACTIVE),),
    vm_states.PAUSED: (("unpause", None, vm_states.ACTIVE),),
    vm_states.SUSPENDED: (("resume", None, vm_states.ACTIVE),),
    vm_states.RESCUED: (("unrescue", None, vm_states.ACTIVE),),
    vm_states.ERROR: (("reboot", {"type": "HARD"}, vm_states.ACTIVE),),
}


def list_uses(technology: Technology, state: str) -> tuple[Use, ...]:
    """Return what a user does to a server in a state, in this order."""
    again: tuple[Use, ...] = (
        ("os-stop", None, vm_states.STOPPED),
        ("os-start", None, vm_states.ACTIVE),
        ("reboot", {"type": "HARD"}, vm_states.ACTIVE),
    )
    # libvirt can't unplug several functions of one slot.
    if technology is not kinds.PAIRS:
        again += (
            ("suspend", None, vm_states.SUSPENDED),
            ("resume", None, vm_states.ACTIVE),
        )
    return (*_FIRST[state], *again) if state in _FIRST else ()


def list_failures(
    life: lives.Life,
    act: Callable[[str, Any], str],
    is_usable: Callable[[Any], bool],
) -> Iterator[str]:
    """Use each server that Nova calls well; yield why one does not serve.

    :param act: does an action on a server; returns why Nova refuses it.
    :param is_usable: whether neither Nova nor a fault has given one up.
    """
    for number, uuid in enumerate(life.servers):
        instance = life.instance(uuid)
        if instance is None or not is_usable(instance):
            continue
        user = _User(life, number, act)
        before = instance.vm_state
        if reason := user.end_move(instance) or user.use() or user.attach():
            yield f"{before} server {uuid}: {reason}"


class _User:
    """The user of one server. Each method returns what went wrong."""

    def __init__(
        self, life: lives.Life, number: int, act: Callable[[str, Any], str]
    ) -> None:
        self._life, self._number, self._act = life, number, act
        self._uuid = life.servers[number]

    def _read(self) -> Any:
        return self._life.instance(self._uuid)

    def end_move(self, instance: Any) -> str:
        """Confirm or revert a resize."""
        if instance.vm_state != vm_states.RESIZED:
            return ""
        action = ("confirmResize", "revertResize")[self._number % 2]
        # A server that was stopped before is stopped after it.
        stable = (vm_states.ACTIVE, vm_states.STOPPED)
        return self._do(action, None, stable)

    def use(self) -> str:
        """Do what a user does to a server in its state."""
        state = self._read().vm_state
        technology = self._life.world.technology
        for action, body, after in list_uses(technology, state):
            if reason := self._do(action, body, (after,)):
                return reason
        return ""

    def _do(self, action: str, body: Any, states: tuple[str, ...]) -> str:
        refusal = self._act(self._uuid, {action: body})
        instance = self._read()
        if instance is None:
            return f"{action}: {refusal or 'the server is gone'}"
        if instance.vm_state in states and not instance.task_state:
            return f"{action}: {refusal}" if refusal else ""
        fault = objects.InstanceFault.get_latest_for_instance(
            self._life.world.context, self._uuid
        )
        return (
            f"{action}: {refusal} it is {instance.vm_state},"
            f" {instance.task_state}: {fault and fault.message}"
        )

    def attach(self) -> str:
        """Attach a device if one is free; half of the servers detach it."""
        world, instance = self._life.world, self._read()
        # libvirt can't unplug several functions of one slot.
        if (
            instance.vm_state != vm_states.ACTIVE
            or world.technology is kinds.PAIRS
            or not _has_free(world, instance.host)
        ):
            return ""
        server = {"id": self._uuid}
        try:
            answer = world.bus.run(
                lambda: world.attach(server, world.profile())
            )
            if self._number % 2:
                world.bus.run(lambda: world.detach(server, answer["name"]))
        except errors.AcceleratorError as error:
            return f"attach and detach: {error}"
        return ""


def _has_free(world: worlds.World, host: str) -> bool:
    """Return whether a host has one more device of the small flavor.

    Placement offers it, and no server or move in Nova's database has all of
    its slots: a server whose build failed while the database did not answer
    keeps a slot that Nova has no allocation for.
    """
    words = [f"in_tree={world.compute_rp_uuids[host]}"]
    for key, value in world.specs["small"].items():
        kind, is_named, name = key.partition(":")
        if is_named and kind.startswith("resources"):
            words.append(f"resources={name}:{value}")
        elif is_named and kind.startswith("trait"):
            words.append(f"required={name}")
    path = f"/allocation_candidates?{'&'.join(words)}"
    answer = world.placement.get(path, version="1.36")
    taken = _list_taken(world, host)
    tree = world.computes[host].manager.rt.provider_tree
    return any(
        all(
            len(slots - taken) >= amount
            for provider, allocation in request["allocations"].items()
            for name, amount in allocation["resources"].items()
            if (slots := tree.data(provider).resources.get(name)) is not None
        )
        for request in answer.body["allocation_requests"]
    )


def _list_taken(world: worlds.World, host: str) -> set[Any]:
    """Return the slots that Nova's database has given away on a host."""
    taken: set[Any] = set()
    for instance in objects.InstanceList.get_by_host(
        world.context, host, expected_attrs=["resources"]
    ):
        taken.update(instance.resources or ())
    for migration in objects.MigrationList.get_in_progress_by_host_and_node(
        world.context, host, host
    ):
        instance = objects.Instance.get_by_uuid(
            world.context,
            migration.instance_uuid,
            expected_attrs=["migration_context"],
        )
        if (move := instance.migration_context) is not None:
            for end, resources in (
                (migration.source_compute, move.old_resources),
                (migration.dest_compute, move.new_resources),
            ):
                taken.update(resources or () if end == host else ())
    return taken
