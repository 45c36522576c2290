# SPDX-License-Identifier: Apache-2.0
"""Execution of a plan of moves: one after another, each checked before.

Nothing is stored: finished moves are read from Nova and Placement, so a run
that was interrupted is continued by running it again.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from nova_accel import errors
from nova_accel.model import names
from placement_sync.cli import progress
from placement_sync.client import nova_api, provider_records
from placement_sync.fleet.devices import server_migrations
from placement_sync.fleet.explain import (
    explain_command,
    server_request,
    simulation,
)
from placement_sync.fleet.flavors import cloud
from placement_sync.planning.defragmentation import (
    cloud_reader,
    move_plan,
    plan_text,
)

_STATUSES = {
    move_plan.MoveKind.LIVE: "ACTIVE",
    move_plan.MoveKind.COLD: "SHUTOFF",
}
_CONFIRMABLE = "VERIFY_RESIZE"
#: A host publishes a card that a server has left within seconds.
PUBLISH_SECONDS = 120.0


class Progress(enum.StrEnum):
    """Progress of a move."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class DifferenceError(errors.AcceleratorError):
    """The cloud is not as the plan has it.

    :param reason: what differs, and of which move.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; no more servers were moved. Run this again once the"
            " cause is gone, or make a new plan"
        )


class MoveDifferenceError(DifferenceError):
    """A move is not possible any more.

    :param reason: what differs.
    """

    def __init__(self, move: move_plan.PlannedMove, reason: str) -> None:
        super().__init__(f"{plan_text.describe_move(move)}: {reason}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """A server, and the uuids of the cards that it has units of."""

    server: nova_api.Server
    cards: frozenset[str]


class MoveRun:
    """Run of a plan.

    :param seconds: timeout of each migration.
    """

    def __init__(
        self,
        reader: cloud_reader.PlanningReader,
        plan: move_plan.MovePlan,
        seconds: float,
    ) -> None:
        self._reader, self.plan, self._seconds = reader, plan, seconds

    def list_progress(
        self,
    ) -> tuple[tuple[move_plan.PlannedMove, Progress], ...]:
        """Return each move with its progress.

        :raises DifferenceError: a server is neither where the plan has it nor
            where it should go.
        :raises ServiceError: Nova or Placement can't be read.
        """
        return tuple((m, self.find_progress(m)) for m in self.plan.moves)

    def find_progress(self, move: move_plan.PlannedMove) -> Progress:
        """Return the progress of a move; see ``list_progress``."""
        position = self._read_position(move)
        server = position.server
        if self._has_arrived(move, position):
            return Progress.DONE
        if server.task or server.status == _CONFIRMABLE:
            if not position.cards <= {move.source.uuid, move.target.uuid}:
                raise MoveDifferenceError(move, _describe_cards(position))
            return Progress.RUNNING
        if server.host != move.source.service:
            raise MoveDifferenceError(
                move, f"it is on {server.host or 'no host'}"
            )
        if position.cards != {move.source.uuid}:
            raise MoveDifferenceError(move, _describe_cards(position))
        if server.status != _STATUSES[move.kind]:
            raise MoveDifferenceError(
                move,
                f"it is {server.status}, and must be {_STATUSES[move.kind]}",
            )
        return Progress.WAITING

    def execute(
        self, moves: Iterable[move_plan.PlannedMove]
    ) -> Iterator[move_plan.PlannedMove]:
        """Carry out moves one after another, and yield each that is done.

        :raises DifferenceError: the cloud is not as the plan has it, or Nova
            did not migrate a server.
        :raises ServiceError: Nova or Placement can't be used.
        """
        for move in moves:
            state = self.find_progress(move)
            if state is Progress.WAITING:
                self.check_target(move, PUBLISH_SECONDS)
                state = self.find_progress(move)
            if state is not Progress.DONE:
                self._migrate(move, state is Progress.RUNNING)
            yield move

    def check_target(
        self, move: move_plan.PlannedMove, seconds: float
    ) -> None:
        """Check that Nova would give a server the planned card now.

        :param seconds: time for the host to publish its cards.
        :raises DifferenceError: it would not.
        """
        reasons: list[str] = []

        def find() -> str:
            reasons[:] = [self._explain_target(move)]
            return reasons[0]

        if not progress.wait_until(
            f"room for {move.name} on {move.target}", find, seconds
        ):
            raise MoveDifferenceError(move, reasons[0])

    # -- a move ---------------------------------------------------------------

    def _explain_target(self, move: move_plan.PlannedMove) -> str:
        """Return why Nova would not choose the planned card, or ""."""
        request = server_request.find_request(
            self._reader.compute, move.server
        )
        if request is None:
            raise MoveDifferenceError(move, "Nova does not show it any more")
        groups = server_request.read_host_groups(self._reader.compute, request)
        excluded = server_request.explain_exclusions(request, groups)
        devices = cloud.read(
            self._reader.placement,
            lambda all_devices: [
                d for d in all_devices if d.root == move.target.root
            ],
        )
        try:
            result = explain_command.simulate(
                self._reader.placement,
                request.simulated,
                devices,
                move.target.root,
                excluded,
            )
        except simulation.RejectedError as error:
            return str(error)
        cards = {c.uuid: c for host in result.hosts for c in host.cards}
        first = [c for c in cards.values() if c.verdict == simulation.FIRST]
        if first and first[0].uuid == move.target.uuid:
            return ""
        if first:
            address = names.provider_address(move.target.host, first[0].name)
            return f"Nova would choose {address}"
        if move.target.uuid not in cards:
            return f"{move.target} is not offered any more"
        return f"{move.target}: {cards[move.target.uuid].why}{self._age(move)}"

    def _age(self, move: move_plan.PlannedMove) -> str:
        generation = self._reader.read_generation(move.target.uuid)
        if generation == move.target.generation:
            return ""
        return (
            f" (generation {generation} of its provider,"
            f" {move.target.generation} in the plan)"
        )

    def _migrate(self, move: move_plan.PlannedMove, is_running: bool) -> None:
        """Request a migration if none runs, and watch it."""
        progress.print_line(plan_text.describe_move(move))
        migrations = server_migrations.ServerMigrations(
            self._reader.compute,
            server_migrations.MigrationKind(move.kind),
            move.target.service,
            [move.server] if is_running else [],
        )
        last = [""]

        def find() -> str:
            last[0] = self._advance(move, migrations)
            return last[0]

        if not progress.wait_until(
            f"{move.name} to arrive on {move.target}", find, self._seconds
        ):
            reason = "; ".join(migrations.failures.values()) or last[0]
            raise MoveDifferenceError(move, reason.rstrip("."))

    def _advance(
        self,
        move: move_plan.PlannedMove,
        migrations: server_migrations.ServerMigrations,
    ) -> str:
        """Return why a server has not arrived, "" once it has."""
        position = self._read_position(move)
        if self._has_arrived(move, position):
            return ""
        server = position.server
        if server.host == move.target.service and not server.task:
            if server.status != _CONFIRMABLE:
                raise MoveDifferenceError(move, _describe_cards(position))
        # While it moves, its migration has the units of the source.
        is_holder = move.source.uuid in position.cards
        migrations.advance([move.server] if is_holder else [])
        task = f", {server.task}" if server.task else ""
        return f"{move.name} is {server.status}{task} on {server.host}"

    def _read_position(self, move: move_plan.PlannedMove) -> _Position:
        server = nova_api.find_server(self._reader.compute, move.server)
        if server is None:
            raise MoveDifferenceError(move, "Nova does not show it any more")
        allocations, *_ = provider_records.fetch_consumer(
            self._reader.placement.fetch, move.server
        )
        classes = move.resources.keys()
        return _Position(
            server=server,
            cards=frozenset(
                uuid
                for uuid, amounts in allocations.items()
                if classes & amounts.keys()
            ),
        )

    def _has_arrived(
        self, move: move_plan.PlannedMove, position: _Position
    ) -> bool:
        server = position.server
        return (
            server.host == move.target.service
            and not server.task
            and server.status != _CONFIRMABLE
            and position.cards == {move.target.uuid}
        )


def _describe_cards(position: _Position) -> str:
    cards = ", ".join(sorted(position.cards)) or "no card"
    return f"it has units of {cards} on {position.server.host or 'no host'}"
