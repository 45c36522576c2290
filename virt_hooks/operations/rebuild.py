# SPDX-License-Identifier: Apache-2.0
"""Servers whose rebuild failed: their allocations are restored.

Nova treats such a server as evacuated, and removes its allocations on its
host (nova/compute/manager.py, rebuild_instance). The server stays on the
host with its slots, and a hard reboot starts it again, so its allocations
are written again.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nova.conf
from nova import context as nova_context

from nova_accel.config import logs
from nova_accel.host.state import notes
from nova_accel.model import json_codec
from virt_hooks import error_guards
from virt_hooks.error_guards import Stock
from virt_hooks.instance import instance_request, nova_records
from virt_hooks.operations import nova_database
from virt_hooks.report import server_allocations
from virt_hooks.spawn import lifecycle

Amounts = Mapping[str, Mapping[str, int]]


class RebuildAllocations:
    """Allocations of servers under rebuild on a host. Thread-safe.

    A failed rebuild may remove a server's allocations from Placement. These
    notes are the only copy to restore them from.
    """

    def __init__(self, state_dir: str) -> None:
        """Use a directory below ``state_dir``; the first write creates it."""
        self._notes = notes.NoteStore(state_dir, notes.BOOKED)
        self.path = self._notes.path

    def read(self) -> dict[str, Amounts]:
        """Return amounts by server, provider's uuid and resource class.

        Unreadable notes are logged; they stay on disk.
        """
        by_server = self._notes.read_last(
            "allocations of servers under rebuild may get lost"
        )
        return {
            server: amounts
            for server, note in by_server.items()
            if (amounts := self._parse(note)) is not None
        }

    def put(self, server: str, amounts: Amounts) -> None:
        self._notes.write_or_retain(
            notes.RebuiltServer(
                address=server,
                reason="these allocations are restored if Nova removes them",
                when=notes.now(),
                amounts=json.dumps({p: dict(a) for p, a in amounts.items()}),
            )
        )

    def remove(self, server: str) -> None:
        self._notes.remove_or_ignore(server)

    def _parse(self, note: notes.RebuiltServer) -> Amounts | None:
        """Return the amounts of a note, None if they can't be parsed."""
        try:
            content = json_codec.loads(note.amounts or "")
            amounts: Amounts = json_codec.decode(Amounts, content, "it")
            return amounts
        except ValueError as error:
            logs.error(
                LOG,
                "The stored allocations of server %s can't be read: %s"
                " (%s); compare `openstack resource provider allocation show"
                " %s` with its flavor, then remove its note from %s",
                note.address,
                note.reason,
                error,
                note.address,
                self.path,
            )
            return None


LOG = logging.getLogger(__name__)


class RebuiltServers:
    """Notes of the allocations of servers that are being rebuilt."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        placement: server_allocations.ServerAllocations,
        allocations: RebuildAllocations,
        publish: Callable[[Any], None],
    ) -> None:
        """Write the noted allocations again through ``placement``.

        :param publish: sends changes of the provider tree to Placement; it
            takes Nova's request context.
        """
        self._accel = accel
        self._placement = placement
        self._allocations = allocations
        self._publish = publish
        # A pass and a reboot would allocate twice.
        self._restore_lock = threading.Lock()
        #: Servers that had their allocations, or need none, in the last
        #: pass.
        self._restored: set[str] = set()

    def rebuild(self, stock: Stock, instance: Any, **kwargs: Any) -> Any:
        """Note the server's allocations before the stock method.

        :raises NotImplementedError: always; Nova then destroys and spawns
            the server.
        """
        with error_guards.log_errors(
            "can't note the allocations of a rebuild"
        ):
            self._note(instance, kwargs.get("allocations"))
        return stock()

    def _note(self, instance: Any, allocations: Any) -> None:
        """Note the allocations of a server that is rebuilt on its host.

        Nova may remove them at any time until the rebuild is done, also if
        only the answer to its last save is lost. The note is removed after
        two passes in which the server has its allocations.
        """
        if nova_database.is_rebuilt(instance) and allocations:
            amounts = {
                provider: record["resources"]
                for provider, record in allocations.items()
            }
            self._allocations.put(instance.uuid, amounts)

    def restore_allocations(self) -> None:
        """Write allocations again that Nova has removed.

        A server whose allocations can't be written does not stop the
        others; the next pass tries again.
        """
        with self._restore_lock:
            for uuid, amounts in self._allocations.read().items():
                with error_guards.log_errors(
                    "can't allocate for server %s", uuid
                ):
                    is_restored = self._restore(uuid, amounts)
                    # Nova may be about to remove the allocations.
                    if not is_restored:
                        self._restored.discard(uuid)
                    elif uuid in self._restored:
                        self._restored.discard(uuid)
                        self._allocations.remove(uuid)
                    else:
                        self._restored.add(uuid)

    def _restore(self, uuid: str, amounts: Amounts) -> bool:
        """Allocate for a server if it has slots and no allocation.

        :returns: whether the server has its allocations, or needs none.
        :raises nova.exception.NovaException: Nova's database can't be read.
        :raises ServiceError: Placement can't be read.
        """
        # Read first: Nova removes the allocations of a server that leaves
        # before it saves that.
        is_allocated = bool(self._placement.providers_of(uuid))
        instance = nova_records.find_instance(uuid, ["resources"])
        if instance is None or instance.host != nova.conf.CONF.host:
            return True
        if nova_database.is_rebuilt(instance) or nova_database.is_leaving(
            instance
        ):
            return False
        if instance.resources and not is_allocated:
            if self._has_lost_slots(instance):
                LOG.warning(
                    "allocations of server %s are not restored: Nova has"
                    " reassigned its slots; delete the server",
                    uuid,
                )
                return True
            with self._without_reservations(uuid):
                self._placement.create(
                    instance, {p: {"resources": a} for p, a in amounts.items()}
                )
            LOG.warning(
                "restored allocations of server %s after a failed rebuild",
                uuid,
            )
        return True

    @contextlib.contextmanager
    def _without_reservations(self, uuid: str) -> Iterator[None]:
        """Remove the reservations of a server while it gets allocations.

        The amounts of claims without allocations are reserved. After an
        error the next pass reserves them again.
        """
        reserved = self._accel.unallocated
        others = {key: n for key, n in reserved.items() if key[0] != uuid}
        if len(others) == len(reserved):
            yield
            return
        self._accel.set_unallocated(others)
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._accel.set_unallocated, reserved)
            self._publish(nova_context.get_admin_context())
            yield
            on_error.pop_all()

    def _has_lost_slots(self, instance: Any) -> bool:
        """Return whether another server has a claim on one of the slots.

        Nova frees the slots of a server whose delete fails in the end.
        """
        claimed = self._accel.store.slots_of_others(instance.uuid)
        own = instance_request.slots_of(instance.resources)
        return bool({s.key for s in own} & {s.key for s in claimed})
