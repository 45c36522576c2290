# SPDX-License-Identifier: Apache-2.0
"""Servers whose rebuild failed: their allocations are restored.

Nova takes each of them for evacuated, and gives up its allocations on the
host that it is on (nova/compute/manager.py, rebuild_instance); the server
stays there, with its slots, and a hard reboot brings it back. So it is
booked again.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects

from nova_accel.host.state import rebuild_allocations
from virt_hooks.instance import slots
from virt_hooks.operations import nova_database
from virt_hooks.report import reporter
from virt_hooks.spawn import claim_store, lifecycle

LOG = logging.getLogger(__name__)


class RebuiltServers:
    """Allocations of servers that are rebuilt, until they are safe again."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        reporter: reporter.Reporter,
        booked: rebuild_allocations.RebuildAllocations,
    ) -> None:
        """Book through this one, what is noted there."""
        self._accel = accel
        self._reporter = reporter
        self._booked = booked
        # A pass and a reboot would book the same twice.
        self._looking = threading.Lock()
        #: Servers that the last pass found rebuilt, with allocations.
        self._settled: set[str] = set()

    def note(self, instance: Any, allocations: Any) -> None:
        """Note the allocations of a server that is rebuilt in place.

        Nova may give them up at any time until the rebuild is done, also
        when only the answer to its last save is lost. The note goes once a
        pass finds the server rebuilt, with its allocations.
        """
        if nova_database.is_rebuilt(instance) and allocations:
            amounts = {
                provider: record["resources"]
                for provider, record in allocations.items()
            }
            self._booked.put(instance.uuid, amounts)

    def look(self) -> None:
        """Book again what Nova has given up, once it has.

        One of which that fails is tried again with the next pass, and the
        others are looked at all the same.
        """
        with self._looking:
            for uuid, amounts in self._booked.read().items():
                with reporter.logged("can't book server %s again", uuid):
                    is_settled = self._is_settled(uuid, amounts)
                    # Nova may be about to give up what it has still.
                    if not is_settled:
                        self._settled.discard(uuid)
                    elif uuid in self._settled:
                        self._settled.discard(uuid)
                        self._booked.remove(uuid)
                    else:
                        self._settled.add(uuid)

    def _is_settled(
        self, uuid: str, amounts: rebuild_allocations.Amounts
    ) -> bool:
        """Return whether a server has what it is to have, or needs none.

        :raises nova.exception.NovaException: Nova's database, or Placement,
            can't be asked.
        """
        instance = _read(uuid)
        if instance is None or instance.host != nova.conf.CONF.host:
            return True
        if nova_database.is_rebuilt(instance):
            return False  # Nova has not given it up yet
        if instance.resources and not self._reporter.is_booked(uuid):
            if self._has_lost_slots(instance):
                LOG.warning(
                    "server %s is not booked again: Nova has given its slots"
                    " to another server; delete it",
                    uuid,
                )
                return True
            self._reporter.book(
                instance, {p: {"resources": a} for p, a in amounts.items()}
            )
            LOG.warning("server %s is booked again where it is", uuid)
        return True

    def _has_lost_slots(self, instance: Any) -> bool:
        """Return whether another server has a claim on one of the slots.

        Nova frees the slots of a server whose delete fails in the end.
        """
        others = (
            claim
            for claim in self._accel.claims()
            if claim.consumer != instance.uuid
        )
        return bool(
            claim_store.within(others, slots.of_resources(instance.resources))
        )


@contextlib.contextmanager
def as_it_is_here(instance: Any) -> Iterator[None]:
    """Rebuild a server in place with the slots that it has.

    A cold migration or resize that failed leaves its migration context. Nova
    applies the new resources of that context while a server is rebuilt
    (nova/compute/manager.py, _rebuild_default_impl), and stores them
    afterwards (resource_tracker.py, finish_evacuation) if the context is
    still there.

    :raises nova.exception.NovaException: Nova's database can't be read.
    """
    if not nova_database.is_rebuilt(instance) or not _has_old_slots(instance):
        yield
        return
    with instance.mutated_migration_context(revert=True):
        yield
    instance.drop_migration_context()


def _has_old_slots(instance: Any) -> bool:
    """Return whether a server's last move was from here, and failed."""
    moved = instance.migration_context
    if moved is None:
        return False
    migration = objects.Migration.get_by_id(
        nova_context.get_admin_context(), moved.migration_id
    )
    here = nova.conf.CONF.host
    if migration.source_compute != here:
        return False
    if migration.dest_compute != here:
        return True
    # A resize in place: the database has the old resources if it failed.
    stored = _read(instance.uuid)
    return stored is not None and (
        {*slots.of_resources(stored.resources)}
        != {*slots.of_resources(moved.new_resources)}
    )


def _read(uuid: str) -> Any:
    """Return an instance, None of one that is deleted."""
    try:
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(),
            uuid,
            expected_attrs=["resources"],
        )
    except exception.InstanceNotFound:
        return None
