# SPDX-License-Identifier: Apache-2.0
"""The fewest moves of servers that make room for a profile.

Devices that are drained, faulted, missing or on hosts that get no servers
neither give nor get one.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.geometry.scheduling import vgpu_geometry
from nova_accel.inventory import wording
from placement_sync.fleet.devices import device_rows, fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.moves import (
    card_contents,
    movable_servers,
    move_search,
    move_state,
)

KnownCard = card_contents.KnownCard
_OK = "ok"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerMove:
    """Move of a server's partition, of ``memory_mb``, to another card.

    ``profile`` is its name in the series of the server's flavor.
    """

    server: movable_servers.MovableServer
    profile: str
    source: offered_devices.OfferedDevice
    target: offered_devices.OfferedDevice
    memory_mb: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rearrangement:
    """Moves in order, and what fits before and after them.

    ``profile`` fits ``before`` times without them, and ``after`` times with
    them, there at least once on each of ``cards``; the largest profile of
    these cards' model that fits is named for both. ``is_shortest`` is true
    if there is proved to be no plan with fewer moves.
    """

    moves: tuple[ServerMove, ...]
    profile: str
    before: int
    after: int
    largest_before: str
    largest_after: str
    cards: tuple[offered_devices.OfferedDevice, ...]
    is_shortest: bool = True


class NoPlanError(errors.AcceleratorError):
    """No moves reach the goal. ``is_certain`` is False if not all were tried.

    :param reason: why.
    """

    def __init__(self, reason: str, is_certain: bool) -> None:
        super().__init__(reason)
        self.is_certain = is_certain


class Defragmentation:
    """Moves among the devices of a fleet.

    :param hosts: uuids of the compute nodes of servers by server, those
        without accelerators too, for the server groups of ``rules``.
    :param is_over: returns whether to stop the search.
    """

    def __init__(
        self,
        fleet: fleet_state.Fleet,
        types: offered_devices.VgpuTypes,
        rules: movable_servers.MoveRules,
        is_over: Callable[[], bool],
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self._types = types
        self._rows = [
            row
            for row in device_rows.list_devices(fleet, types)
            if row.state == _OK and row.device.root not in fleet.cloud.disabled
        ]
        cards = [
            card
            for row in self._rows
            if (card := card_contents.build_card(row, fleet, types))
        ]
        self._site = move_state.MoveSite(cards, fleet, types)
        self.terms = movable_servers.ServerTerms(cards, fleet, rules)
        self._begin = self._site.begin(rules.groups, hosts or {})
        self._search = move_search.MoveSearch(
            self._begin, self._site, self.terms.movable.values(), is_over
        )

    def list_models(self) -> tuple[str, ...]:
        """Return the catalog's keys of the models of the known cards."""
        return tuple(sorted({c.gpu for c in self._site.cards.values()}))

    def find_type(self, name: str) -> vgpu_types.CatalogVgpuType:
        """Return the vGPU type of a name, in any of its spellings.

        :raises MalformedError: no known card offers it.
        """
        types = {
            vgpu_type.name: vgpu_type
            for card in self._site.cards.values()
            for vgpu_type in self._types.of_device(card.row.device)
            if card_contents.offers(card, vgpu_type)
        }
        for vgpu_type in types.values():
            if mdev_names.is_profile_name(name, vgpu_type.name):
                return vgpu_type
        raise errors.MalformedError(
            "profile of a card in service whose partitions are known",
            name,
            ", ".join(sorted(types)) or "none: no such card is in service",
        )

    def make_room(
        self, vgpu_type: vgpu_types.CatalogVgpuType, count: int, most: int
    ) -> Rearrangement:
        """Return the fewest moves after which a profile fits so many times.

        :param most: moves, at most.
        :raises NoPlanError: there are none.
        """
        goal = self._build_goal(vgpu_type, count)
        result = self._search.find(goal, most)
        state = result.state
        if state is None and not result.is_complete:
            state = self._search.dive(goal, most)
        if state is None:
            raise NoPlanError(
                f"no plan of at most {_moves(most)} after which"
                f" {vgpu_type.name} fits {_times(count)}; now it fits"
                f" {_times(self._search.count(self._begin, goal))}",
                result.is_complete,
            )
        return self._build(state, goal, vgpu_type, result.is_complete)

    def raise_largest(self, gpu: str, most: int) -> Rearrangement:
        """Return the fewest moves after which a larger profile fits.

        Of those the one with the largest profile.

        :param gpu: the catalog's key of the model.
        :raises NoPlanError: there are none.
        """
        goals = list(self._list_larger(gpu))
        is_complete = True
        for depth in range(1, most + 1):
            for vgpu_type in goals:
                goal = self._build_goal(vgpu_type, 1)
                result = self._search.find_within(goal, depth)
                is_complete = is_complete and result.is_complete
                if result.state is not None:
                    return self._build(
                        result.state, goal, vgpu_type, is_complete
                    )
            if not is_complete:
                break
        for vgpu_type in [] if is_complete else goals:
            goal = self._build_goal(vgpu_type, 1)
            state = self._search.dive(goal, most)
            if state is not None:
                return self._build(state, goal, vgpu_type, False)
        largest = self._find_largest(gpu, self._begin)
        raise NoPlanError(
            f"no plan of at most {_moves(most)} after which a larger profile"
            f" of {gpu} fits than {largest or 'none'}",
            is_complete,
        )

    def raise_any_largest(
        self, gpus: Iterable[str], most: int
    ) -> Rearrangement:
        """Return the fewest moves after which a larger profile fits.

        Of a model, and of those the ones with the largest profile.

        :param gpus: the catalog's keys of the models.
        :raises NoPlanError: there are none.
        """
        plans: list[Rearrangement] = []
        failures: list[NoPlanError] = []
        for gpu in gpus:
            try:
                plans.append(self.raise_largest(gpu, most))
            except NoPlanError as error:
                failures.append(error)
            else:
                most = min(most, len(plans[-1].moves))
        if plans:
            return min(plans, key=lambda p: (len(p.moves), -self._size(p)))
        raise NoPlanError(
            "; ".join(map(str, failures))
            or "no card in service has partitions that are all known",
            all(error.is_certain for error in failures),
        )

    def _size(self, plan: Rearrangement) -> int:
        vgpu_type = self._types.catalog.find(plan.profile)
        return vgpu_type.framebuffer_mb if vgpu_type else 0

    def replay(self, moves: Iterable[tuple[str, str]]) -> move_state.MoveState:
        """Return the state after moves, each to the card that Nova chooses.

        :param moves: pairs of server and provider of the card.
        :raises NoPlanError: one is not possible.
        """
        state = self._begin
        for uuid, card in moves:
            server = self.terms.movable.get(uuid)
            if server is None:
                reason = self.terms.fixed.get(
                    uuid, "no known card in service has it"
                )
                raise NoPlanError(f"server {uuid} can't move: {reason}", True)
            target = next(
                (t for t in state.list_targets(server) if t.uuid == card), None
            )
            if target is None:
                raise NoPlanError(
                    f"server {server.name} has no place on"
                    f" {self._name_card(card)} any more, or Nova would choose"
                    " another card of that host",
                    True,
                )
            state = state.move(server, target)
        return state

    def count(
        self,
        vgpu_type: vgpu_types.CatalogVgpuType,
        state: move_state.MoveState,
    ) -> int:
        """Return how many of a type fit in a state."""
        return self._search.count(state, self._build_goal(vgpu_type, 1))

    # -- goals ----------------------------------------------------------------

    def _build_goal(
        self, vgpu_type: vgpu_types.CatalogVgpuType, count: int
    ) -> move_search.Goal:
        shape = vgpu_type.framebuffer_mb, vgpu_type.instance
        return move_search.Goal(
            profiles={
                card.uuid: profile.name
                for card in self._site.cards.values()
                if card.gpu == vgpu_type.gpu
                and card_contents.offers(card, vgpu_type)
                for profile in card.device.profiles
                if card_contents.shape_of(profile) == shape
            },
            count=count,
            elsewhere=sum(
                profile.count
                for row in self._rows
                if row.device.uuid not in self._site.cards
                for profile in row.fits
                if profile.name == vgpu_type.name
            ),
        )

    def _list_larger(self, gpu: str) -> Iterator[vgpu_types.CatalogVgpuType]:
        """Yield a type of each shape that does not fit, the largest first.

        Only those larger than all that fit now.
        """
        by_shape: dict[
            vgpu_geometry.Shape, list[vgpu_types.CatalogVgpuType]
        ] = collections.defaultdict(list)
        for card in self._site.cards.values():
            if card.gpu == gpu:
                for vgpu_type in self._types.of_device(card.row.device):
                    if card_contents.offers(card, vgpu_type):
                        by_shape[_shape_of(vgpu_type)].append(vgpu_type)
        largest = self._find_shape(gpu, self._begin)
        for shape in sorted(by_shape, reverse=True):
            if largest is None or shape > largest:
                yield self._choose_name(gpu, by_shape[shape])

    def _choose_name(
        self, gpu: str, alike: Iterable[vgpu_types.CatalogVgpuType]
    ) -> vgpu_types.CatalogVgpuType:
        """Return the type of a series that the cards have."""
        series = frozenset[str]().union(
            *(c.series for c in self._site.cards.values() if c.gpu == gpu)
        )
        return min(
            alike,
            key=lambda t: (
                mdev_names.parse_series(t.name) not in series,
                t.name,
            ),
        )

    def _find_shape(
        self, gpu: str, state: move_state.MoveState
    ) -> vgpu_geometry.Shape | None:
        """Return the largest shape that fits on a card of a model."""
        shapes = {
            card_contents.shape_of(profile)
            for card in self._site.cards.values()
            if card.gpu == gpu
            for profile in card.device.profiles
            if state.contents[card.uuid].counts[profile.name] > 0
        }
        for row in self._rows:
            fits = {profile.name for profile in row.fits}
            if row.device.uuid not in self._site.cards:
                for vgpu_type in self._types.of_device(row.device):
                    if vgpu_type.gpu == gpu and vgpu_type.name in fits:
                        shapes.add(_shape_of(vgpu_type))
        return max(shapes, default=None)

    def _find_largest(self, gpu: str, state: move_state.MoveState) -> str:
        """Return the name of the largest profile that fits, "" for none."""
        shape = self._find_shape(gpu, state)
        alike = [
            vgpu_type
            for vgpu_type in self._types.catalog.profiles_of(gpu)
            if _shape_of(vgpu_type) == shape
        ]
        return self._choose_name(gpu, alike).name if alike else ""

    # -- results --------------------------------------------------------------

    def _build(
        self,
        state: move_state.MoveState,
        goal: move_search.Goal,
        vgpu_type: vgpu_types.CatalogVgpuType,
        is_shortest: bool,
    ) -> Rearrangement:
        gpu = vgpu_type.gpu
        return Rearrangement(
            moves=tuple(self._build_move(*move) for move in state.moves),
            profile=vgpu_type.name,
            before=self._search.count(self._begin, goal),
            after=self._search.count(state, goal),
            largest_before=self._find_largest(gpu, self._begin),
            largest_after=self._find_largest(gpu, state),
            cards=tuple(
                self._site.cards[uuid].row.device
                for uuid, name in goal.profiles.items()
                if state.contents[uuid].counts[name] > 0
            ),
            is_shortest=is_shortest,
        )

    def _build_move(self, uuid: str, target: str) -> ServerMove:
        server = self.terms.movable[uuid]
        source = self._site.cards[server.card]
        return ServerMove(
            server=server,
            profile=self._name_profile(server),
            source=source.row.device,
            target=self._site.cards[target].row.device,
            memory_mb=source.profiles[server.profile].size,
        )

    def _name_profile(self, server: movable_servers.MovableServer) -> str:
        vgpu_types = map(self._types.by_trait.get, server.group.required)
        return next(
            (each.name for each in vgpu_types if each is not None),
            server.profile,
        )

    def _name_card(self, uuid: str) -> str:
        card = self._site.cards.get(uuid)
        if card is None:
            return f"card {uuid} (not in service, or not known)"
        return f"{card.row.device.host}/{card.row.device.address}"


def _moves(number: int) -> str:
    return wording.count_of(number, "move")


def _times(number: int) -> str:
    return wording.count_of(number, "time")


def _shape_of(
    vgpu_type: vgpu_types.CatalogVgpuType,
) -> vgpu_geometry.Shape:
    return vgpu_type.framebuffer_mb, vgpu_type.instance
