# SPDX-License-Identifier: Apache-2.0
"""Servers and migrations of this host in Nova's database."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import nova.conf
from nova.compute import task_states, vm_states

from nova_accel import errors, model
from nova_accel.model import flavors
from virt_hooks.instance import instance_request, ledger, nova_records
from virt_hooks.spawn import claim_store, lifecycle

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)
# Task states in which Nova removes a server's allocations before it saves
# that the server has left the host.
_LEAVING = (task_states.SHELVING_OFFLOADING, task_states.DELETING)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Restorable:
    """Record that the claims of a consumer are restored from.

    ``awaited`` are the slots without claims.
    """

    slots: ledger.Slots
    groups: tuple[flavors.RequestGroup, ...] = ()
    is_built: bool = True
    awaited: ledger.Slots = ()

    def without(self, slots: Iterable[model.Slot]) -> "Restorable":
        return dataclasses.replace(
            self,
            slots=_exclude(self.slots, slots),
            awaited=_exclude(self.awaited, slots),
        )


_NOTHING = Restorable(slots=())


class StartupServers:
    """Servers of this host when the service started. Thread-safe."""

    def __init__(self, accel: lifecycle.Lifecycle) -> None:
        self._accel = accel
        self._servers: dict[str, Restorable] = {}
        self._is_read = False
        #: Slots that servers had.
        self.slots: frozenset[model.Slot] = frozenset()
        self._guard = threading.Lock()

    def images(self) -> frozenset[str]:
        """Return the ids of the images that those servers may need."""
        servers = self._copy().values()
        return instance_request.images_of(
            group for each in servers for group in each.groups
        )

    def restore_claims(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Restore the claims of this host's servers, once.

        The servers are read again with each pass while another
        nova-compute of this host runs, and once more after it has ended.

        While a card or a function is absent or can't be read, the
        partitions in its slots are unknown: the claims on these slots are
        restored again with each pass. Not reentrant.

        :param nodes: returns the names of this host's compute nodes.
        :raises nova.exception.NovaException: Nova's database can't be read.
        """
        self.read_servers(nodes)
        host = self._accel.host.state
        for uuid in self._copy():
            # Read again: it may have been released meanwhile.
            server = self._copy().get(uuid, _NOTHING)
            if not server.awaited or self._accel.is_busy(server.awaited):
                continue  # loading a bitstream may take an hour
            claims = claim_store.in_slots(
                self._accel.claims_of(uuid), server.awaited
            )
            if len(claim_store.made_only(claims)) < len(server.awaited):
                self._accel.restore(
                    uuid,
                    server.awaited,
                    server.groups,
                    functools.partial(self._list_awaited_of, uuid),
                    server.is_built,
                )
        if host.complete and not host.unknown:
            self._await_unclaimed()

    def read_servers(self, nodes: Callable[[], Iterable[str]]) -> None:
        """Read the slots of this host's servers; no claim is restored yet.

        :raises nova.exception.NovaException: Nova's database can't be read.
        """
        is_alone = self._accel.acquire_service_lock()
        if not (self._is_read and is_alone and self._accel.is_alone):
            self._set_servers(read(nodes()))
            self._accel.set_alone(is_alone)
        else:
            self._await_unclaimed()

    def list_awaited(self) -> ledger.Slots:
        """Return the slots whose claims are still to be restored."""
        servers = self._copy().values()
        return tuple(slot for each in servers for slot in each.awaited)

    def _await_unclaimed(self) -> None:
        """Await only servers with slots whose claims are not decided yet.

        Slots that other servers have claimed meanwhile are dropped.
        """
        claims = self._accel.claims()
        with self._guard:
            for uuid, server in self._servers.items():
                if not server.awaited:
                    continue
                own = [c for c in claims if c.consumer == uuid]
                others = [c for c in claims if c.consumer != uuid]
                awaited = _exclude(
                    server.awaited, claim_store.slots_of(others)
                )
                if claim_store.has_claims_on(
                    own, awaited
                ) and not self._accel.has_undecided(uuid):
                    awaited = ()
                self._servers[uuid] = dataclasses.replace(
                    server, awaited=awaited
                )

    def _copy(self) -> dict[str, Restorable]:
        with self._guard:
            return dict(self._servers)

    def _list_awaited_of(self, uuid: str) -> ledger.Slots:
        """Return a server's slots whose claims are to be restored."""
        return self._copy().get(uuid, _NOTHING).awaited

    def forget(self, uuid: str, released: Iterable[model.Slot]) -> None:
        """Forget a server whose slots were all released."""
        with self._guard:
            self._servers.pop(uuid, None)
            self._forget_slots(released)

    def forget_slots(self, uuid: str, released: Iterable[model.Slot]) -> None:
        """Forget some slots of a server that keeps its others."""
        released = tuple(released)
        with self._guard:
            if server := self._servers.get(uuid):
                self._servers[uuid] = server.without(released)
            self._forget_slots(released)

    def _forget_slots(self, released: Iterable[model.Slot]) -> None:
        """Forget slots that no server has by now."""
        servers = self._servers.values()
        owned = {slot.key for each in servers for slot in each.slots}
        forgotten = [slot for slot in released if slot.key not in owned]
        self.slots = frozenset(_exclude(self.slots, forgotten))

    def _set_servers(self, servers: Mapping[str, Restorable]) -> None:
        root = self._accel.root
        awaited = {
            uuid: dataclasses.replace(
                server,
                awaited=instance_request.slots_below_root(root, server.slots),
            )
            for uuid, server in servers.items()
        }
        with self._guard:
            self._servers, self._is_read = awaited, True
            self.slots = frozenset(
                slot for each in awaited.values() for slot in each.awaited
            )


def read(nodes: Iterable[str]) -> dict[str, Restorable]:
    """Return the consumers that have slots of this host by uuid.

    Servers that are migrating away, and may return, are included, and those
    that return in a revert.

    :param nodes: names of this host's compute nodes.
    :raises nova.exception.NovaException: the database can't be read.
    """
    attributes = (*nova_records.SLOTS, "flavor")
    records = nova_records.read(nodes, attributes)
    records |= nova_records.read_reverting(attributes)
    holdings = ledger.build(
        nova.conf.CONF.host, records.instances, records.migrations
    )
    return {
        consumer: _restorable(records.instances[holding.server], holding)
        for consumer, holding in holdings.items()
        if holding.slots
    }


def read_slots(nodes: Iterable[str]) -> frozenset[model.Slot]:
    """Return the slots of this host's servers; see ``read``."""
    return frozenset(
        slot for record in read(nodes).values() for slot in record.slots
    )


def _restorable(instance: Any, holding: ledger.Holding) -> Restorable:
    """Return a consumer with the groups of its flavor at that time.

    They are empty if they can't be read.
    """
    is_old = holding.state in (ledger.State.AWAY, ledger.State.OLD_SIZE)
    flavor = (is_old and instance.old_flavor) or instance.flavor
    groups: tuple[flavors.RequestGroup, ...] = ()
    with contextlib.suppress(errors.MalformedError):
        groups = instance_request.groups_of(instance, flavor, holding.slots)
    return Restorable(
        slots=holding.slots,
        groups=groups,
        is_built=holding.state is not ledger.State.UNBUILT,
    )


def _exclude(
    slots: Iterable[model.Slot], excluded: Iterable[model.Slot]
) -> ledger.Slots:
    keys = {slot.key for slot in excluded}
    return tuple(slot for slot in slots if slot.key not in keys)


def is_rebuilt(instance: Any) -> bool:
    """Return whether a server is being rebuilt on its host.

    Nova destroys and spawns it, and it keeps its slots.
    """
    return (
        instance.host == nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )


def is_leaving(instance: Any) -> bool:
    """Return whether Nova takes a server from its host, or deletes it.

    Nova saves the state of a server that is offloaded or deleted before it
    removes the host from the server's record (nova/compute/manager.py,
    _shelve_offload_instance).
    """
    return instance.task_state in _LEAVING or bool(
        vm_states.allow_resource_removal(
            instance.vm_state, instance.task_state
        )
    )


def is_evacuated(instance: Any) -> bool:
    """Return whether a server of another host is being rebuilt here."""
    return (
        instance.host != nova.conf.CONF.host
        and instance.task_state in _REBUILDING
    )
