# SPDX-License-Identifier: Apache-2.0
"""Servers that have left this host, and what they hold here still.

A move that fails elsewhere, or a confirmation that fails here, ends what
Nova had booked on this host, and nobody tells its driver. The domain stays
defined, with all it had.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute import vm_states

from nova_accel import model
from virt_hooks import lifecycle, nova_report

LOG = logging.getLogger(__name__)

Release = Callable[[Any, tuple[model.Slot, ...]], None]


class Left:
    """Those that may come back, or leave for good. Thread-safe."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        is_booked: Callable[[str], bool],
        release: Release,
    ) -> None:
        """Watch what these accelerators' book says of them.

        :param is_booked: whether Placement has allocations of a consumer.
        :param release: gives back slots that an instance had here.
        """
        self._accel = accel
        self._is_booked = is_booked
        self._release = release
        self._uuids: set[str] = set()
        self._guard = threading.Lock()

    def note(self, uuids: Iterable[str]) -> None:
        """Note servers that leave, or may come back."""
        with self._guard:
            self._uuids.update(uuids)

    def look(self) -> None:
        """Give back what is booked for nobody any more.

        One of which that fails is looked at again with the next pass, and
        the others are looked at all the same.
        """
        with self._guard:
            noted = sorted(self._uuids)
        for uuid in noted:
            with nova_report.logged("can't look after server %s", uuid):
                if self._is_settled(uuid):
                    with self._guard:
                        self._uuids.discard(uuid)

    def _is_settled(self, uuid: str) -> bool:
        """Return whether a server is back, or has nothing here any more."""
        held = self._accel.slots_of(uuid)
        if not held:
            return True
        instance = _read(uuid)
        is_here = instance.host == nova.conf.CONF.host
        if self._is_moving(instance, is_here):
            return False
        if is_here and not instance.deleted:
            return True
        LOG.warning(
            "server %s has left, and nothing is booked here for it: giving"
            " back what it had; its domain here is Nova's to undefine",
            uuid,
        )
        self._release(instance, held)
        return not self._accel.slots_of(uuid)

    def _is_moving(self, instance: Any, is_here: bool) -> bool:
        """Return whether a server may yet come back, or be confirmed."""
        if instance.deleted:
            return False
        if instance.task_state is not None:
            return True
        if is_here:
            return False
        if instance.vm_state == vm_states.RESIZED:
            return True
        moves = objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(),
            {
                "instance_uuid": instance.uuid,
                "source_compute": nova.conf.CONF.host,
            },
        )
        return any(self._is_booked(move.uuid) for move in moves)


def _read(uuid: str) -> Any:
    """Return an instance, also one that is deleted by now."""
    return objects.Instance.get_by_uuid(
        nova_context.get_admin_context(read_deleted="yes"),
        uuid,
        expected_attrs=["flavor"],
    )
