# SPDX-License-Identifier: Apache-2.0
"""Search for moves that Nova would accept, and the plan of them.

Zone, project, aggregates and scheduler hints of a server cost several requests
to Nova, so they are read only for the servers of a plan. If one of its
targets is excluded then, the search is repeated without it.
"""

import datetime
import time
from collections.abc import Callable, Collection, Iterable

from nova_accel.config import library_version
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.moves import defragmentation, movable_servers
from placement_sync.planning.defragmentation import cloud_reader, move_plan

_MS_PER_S = 1000
Search = Callable[
    [defragmentation.Defragmentation], defragmentation.Rearrangement
]


class MovePlanner:
    """Planner of moves in a cloud, as it was read once."""

    def __init__(
        self,
        reader: cloud_reader.PlanningReader,
        seconds: float,
        has_cold: bool = False,
        nodes: Collection[str] | None = None,
    ) -> None:
        """Read the cloud.

        :param seconds: time for the search; afterwards the plan may not be
            the shortest.
        :param nodes: uuids of the compute nodes whose devices have a part,
            None for all.
        :raises ServiceError: Placement or Nova can't be read.
        """
        self._reader = reader
        self._cloud = reader.read()
        if nodes is not None:
            self._cloud = self._cloud.restrict(nodes)
        self._seconds = seconds
        self._has_cold = has_cold

    def find(self, search: Search) -> defragmentation.Rearrangement:
        """Return the result of a search, without targets that Nova excludes.

        :raises NoPlanError: there is none.
        :raises AcceleratorError: the search can't be used, or Nova fails.
        """
        excluded: dict[str, frozenset[str]] = {}
        until = time.monotonic() + self._seconds
        while True:
            result = search(
                self.open_search(
                    movable_servers.MoveRules(
                        has_cold=self._has_cold,
                        groups=self._cloud.groups,
                        excluded=excluded,
                    ),
                    lambda: time.monotonic() > until,
                )
            )
            unread = {m.server.uuid for m in result.moves} - excluded.keys()
            for uuid in sorted(unread):
                excluded[uuid] = frozenset(self._reader.read_exclusions(uuid))
            if not any(
                move.target.root in excluded[move.server.uuid]
                for move in result.moves
            ):
                return result

    def open_search(
        self,
        rules: movable_servers.MoveRules | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> defragmentation.Defragmentation:
        """Return the search in this cloud.

        :param rules: by default those of the server groups.
        """
        return defragmentation.Defragmentation(
            self._cloud.fleet,
            self._reader.types,
            rules
            or movable_servers.MoveRules(
                has_cold=self._has_cold, groups=self._cloud.groups
            ),
            is_over,
            self._cloud.hosts,
        )

    def build(
        self, result: defragmentation.Rearrangement, link: int
    ) -> move_plan.MovePlan:
        """Return the plan of a result.

        :param link: throughput between hosts in MiB/s, 0 for unknown.
        :raises ServiceError: Placement can't be read.
        """
        now = datetime.datetime.now(datetime.UTC)
        return move_plan.MovePlan(
            created=now.isoformat(timespec="seconds"),
            release=library_version.read(),
            gain=move_plan.PlannedGain(
                profile=result.profile,
                before=result.before,
                after=result.after,
                largest_before=result.largest_before,
                largest_after=result.largest_after,
                cards=tuple(_name_all(result.cards)),
            ),
            moves=tuple(self._build_move(m, link) for m in result.moves),
            is_shortest=result.is_shortest,
        )

    def _build_move(
        self, move: defragmentation.ServerMove, link: int
    ) -> move_plan.PlannedMove:
        server = move.server
        is_live = server.kind is movable_servers.Kind.LIVE
        return move_plan.PlannedMove(
            server=server.uuid,
            name=server.name,
            kind=move_plan.MoveKind(server.kind.value),
            profile=move.profile,
            source=self._build_card(move.source),
            target=self._build_card(move.target),
            resources=dict(server.group.resources),
            memory_mb=server.needs["MEMORY_MB"] if is_live else 0,
            framebuffer_mb=move.memory_mb if is_live else 0,
            pause_ms=_estimate_pause(move.memory_mb, link)
            if is_live
            else None,
        )

    def _build_card(
        self, device: offered_devices.OfferedDevice
    ) -> move_plan.PlannedCard:
        return move_plan.PlannedCard(
            uuid=device.uuid,
            host=device.host,
            root=device.root,
            service=self._cloud.services.get(device.root, ""),
            address=device.address,
            generation=self._reader.read_generation(device.uuid),
        )


def _name_all(
    devices: Iterable[offered_devices.OfferedDevice],
) -> list[str]:
    return sorted(f"{device.host}/{device.address}" for device in devices)


def _estimate_pause(framebuffer_mb: int, link: int) -> int | None:
    """Return the time to send a framebuffer in ms, None if not known.

    As ``nova_accel.claims.migration.estimate_downtime``: drivers may send all
    of it only after the guest has stopped.
    """
    return -(-framebuffer_mb * _MS_PER_S // link) if link else None
