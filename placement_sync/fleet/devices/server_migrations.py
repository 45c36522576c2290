# SPDX-License-Identifier: Apache-2.0
"""Moves of servers by Nova's API: off drained devices, or to a named host.

Nova accepts a migration before it begins: while it runs, the server has a
task, or the status VERIFY_RESIZE. A server that still holds a device with
neither of them was not migrated.
"""

import enum
from collections.abc import Iterable, Mapping

from nova_accel import errors
from placement_sync.cli import progress
from placement_sync.client import nova_api, rest

_CONFIRMABLE = "VERIFY_RESIZE"
# Nova offloads it later, or never ([DEFAULT] shelved_offload_time).
_SHELVED = "SHELVED"
# A live migration that was rolled back has no failed event.
_NO_REASON = "see the log of its nova-compute, Nova has no reason"


class MigrationKind(enum.StrEnum):
    """Kind of a move that an operator can request."""

    COLD = "cold"
    LIVE = "live"
    SHELVE = "shelve"


#: Moves to another host.
MOVES = (MigrationKind.COLD, MigrationKind.LIVE)


def _build_action(kind: MigrationKind, host: str) -> Mapping[str, object]:
    """Return the action that begins a move.

    From microversion 2.68 on, nova-scheduler checks a named host as any other
    one: no action here goes round it.

    :param host: the only host to move to, "" for the scheduler's choice.
    """
    if kind is MigrationKind.SHELVE:
        return {"shelve": None}
    if kind is MigrationKind.COLD:
        return {"migrate": {"host": host} if host else None}
    return {
        "os-migrateLive": {"host": host or None, "block_migration": "auto"}
    }


class ServerMigrations:
    """Migrations of the servers that hold some devices.

    ``failures`` are the servers that can't be migrated, with the reason.
    """

    def __init__(
        self,
        compute: rest.RestClient,
        kind: MigrationKind,
        host: str = "",
        requested: Iterable[str] = (),
    ) -> None:
        """Request nothing yet.

        :param host: name of the service of the only host to move to.
        :param requested: uuids of servers whose migration was requested
            before: it is not requested again.
        """
        self._compute = compute
        self._action = _build_action(kind, host)
        self._requested = {*requested}
        self.failures: dict[str, str] = {}

    def advance(self, consumers: Iterable[str]) -> None:
        """Request missing migrations, and confirm those that need it.

        Each server is migrated once.

        :param consumers: uuids of the servers and migrations that hold the
            devices now.
        :raises ServiceError: Nova can't be read.
        :raises NeverMetError: Nova migrates none of them.
        """
        holders = set(consumers)
        for uuid in sorted((holders | self._requested) - self.failures.keys()):
            server = nova_api.find_server(self._compute, uuid)
            if server is None:
                continue  # a migration, or a server that was deleted
            if server.status == _CONFIRMABLE:
                self._advance(server, "confirmResize")
            elif server.status == _SHELVED and uuid in holders:
                self._requested.add(uuid)
                self._advance(server, "shelveOffload")
            elif uuid not in self._requested:
                self._request(server)
            elif uuid in holders and not server.task:
                self.failures[uuid] = self._explain(server)
        if holders and holders <= self.failures.keys():
            refusals = sorted(self.failures.values())
            raise progress.NeverMetError("; ".join(refusals))

    def _explain(self, server: nova_api.Server) -> str:
        """Return that a server was not migrated, with Nova's reason."""
        try:
            reason = nova_api.read_failure(self._compute, server.uuid)
        except errors.ServiceError as error:
            reason = f"the reason is not known: {error.reason}"
        events = f"see `openstack server event list {server.uuid}`"
        return f"{server.name} was not migrated, it is {server.status}: " + (
            f"{reason.rstrip('.')}; {events}" if reason else _NO_REASON
        )

    def _request(self, server: nova_api.Server) -> None:
        if server.task:
            return
        try:
            nova_api.request_action(self._compute, server.uuid, self._action)
        except errors.ServiceError as error:
            if error.status is None:
                raise
            self.failures[server.uuid] = f"{server.name}: {error.reason}"
        else:
            self._requested.add(server.uuid)

    def _advance(self, server: nova_api.Server, action: str) -> None:
        """Request the next action, if this object requested the first one."""
        if server.uuid not in self._requested or server.task:
            return
        try:
            nova_api.request_action(self._compute, server.uuid, {action: None})
        except errors.ServiceError as error:
            # Nova may have done it itself ([DEFAULT] resize_confirm_window,
            # shelved_offload_time).
            if not error.is_conflict:
                raise
