# SPDX-License-Identifier: Apache-2.0
"""Checks of a server's accelerators before it live-migrates."""

import dataclasses
import threading
import types
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching, migration
from nova_accel.model import flavors, names
from virt_hooks.guest import connection
from virt_hooks.operations import live_migration_facts, live_migration_wire
from virt_hooks.spawn import lifecycle, spawn_checks

_NO_OTHER = (
    "the destination does not run nova-accel, or not for its accelerators:"
    " see `nova-accel inspect` and compute_driver there"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigratingServer:
    """What decides which accelerators a server has on a host.

    ``slots`` are those of that host, ``booked`` its allocations there.
    """

    uuid: str
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...] = ()
    booked: model.Booked = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )


class MigrationChecks:
    """Checks what leaves and arrives on one host, and makes the latter.

    Thread-safe. Every method raises ClaimError with the reasons.
    """

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        facts: live_migration_facts.HostAbilities,
    ) -> None:
        """Use these accelerators; ``facts`` are of the host."""
        self._accel = accel
        self._facts = facts
        self._guard = threading.Lock()
        self._expected: set[str] = set()

    def expected(self) -> frozenset[str]:
        """Return the servers that were made room for, and are not here."""
        with self._guard:
            return frozenset(self._expected)

    def expect(self, uuids: Iterable[str]) -> None:
        """Expect servers that an earlier service has made room for."""
        with self._guard:
            self._expected.update(uuids)

    def end(self, uuid: str) -> None:
        """Expect a server no more: it is here, or is not coming."""
        with self._guard:
            self._expected.discard(uuid)

    def tell_offers(
        self, server: MigratingServer, host: migration.MigrationHost
    ) -> str:
        """Return what this host could make for a server, for its source."""
        offers = (
            live_migration_wire.offer_of(device, profile)
            for device in self._accel.host.state.devices
            for group in server.groups
            if (profile := matching.profile_of(group, device)) is not None
        )
        return live_migration_wire.to_text(
            live_migration_wire.WireHost(
                host=host, parts=tuple(dict.fromkeys(offers))
            )
        )

    def check_departure(
        self,
        server: MigratingServer,
        use: connection.HostdevUse,
        host: migration.MigrationHost,
        limits: migration.MigrationLimits,
        told: str | None,
    ) -> str:
        """Return what a server would take along, for its destination.

        :param use: what its domain has.
        :param told: what the destination said of itself, None for nothing.
        :raises ClaimError: it can't leave, or not for that destination.
        :raises MalformedError: the destination speaks otherwise.
        """
        held = self._accel.claims_of(server.uuid)
        _check_known(server, held, use)
        parts = self._parts(held)
        _refuse(server, migration.check_leaving(parts, host, limits))
        if told is None:
            raise errors.ClaimError(server.uuid, _NO_OTHER)
        there = live_migration_wire.parse_told(told)
        _refuse(
            server,
            migration.check_arriving(parts, host, there.parts, there.host),
        )
        return live_migration_wire.to_text(
            live_migration_wire.WireHost(host=host, parts=parts)
        )

    def check_arrival(
        self, server: MigratingServer, host: migration.MigrationHost, told: str
    ) -> None:
        """Check that what Nova claimed here suits what comes.

        Nothing is made yet: Nova may still give up without a word.

        :param told: what the source said.
        :raises ClaimError: it does not.
        :raises MalformedError: the source speaks otherwise.
        """
        root, state = self._accel.root, self._accel.host.state
        if root is None:
            raise errors.ClaimError(server.uuid, _NO_OTHER)
        spawn_checks.check_booked(
            server.uuid, server.groups, server.slots, state
        )
        wanted = {slot.provider for slot in server.slots}
        for device in state.devices:
            if names.provider_uuid(root.uuid, device.address) in wanted:
                spawn_checks.check_open(server.uuid, device)
        planned = claim_plan.plan(
            server.uuid,
            server.groups,
            server.slots,
            root,
            state,
            server.booked,
        )
        there, parts = (
            live_migration_wire.parse_told(told),
            self._parts(planned),
        )
        _refuse(
            server,
            migration.check_arriving(there.parts, there.host, parts, host),
        )
        _pair(server, there.parts, parts)

    def make_room(self, server: MigratingServer, told: str) -> "HandlePairs":
        """Make what a server needs here, and return what replaces what.

        The server is expected from now on, whatever comes of it: who asked
        has to end that.

        :param told: what the source said.
        :raises ClaimError: it can't be made, or is not what comes.
        :raises ActionError: the kernel refused.
        :raises MalformedError: the source speaks otherwise.
        """
        there = live_migration_wire.parse_told(told)
        with self._guard:
            self._expected.add(server.uuid)
        made = self._accel.ensure(
            server.uuid, server.groups, server.slots, server.booked
        )
        handles = _pair(server, there.parts, self._parts(made))
        mdevs = {p.handle for p in there.parts if p.technology == "mdev"}
        return HandlePairs(
            mdevs={o: n for o, n in handles.items() if o in mdevs},
            functions={o: n for o, n in handles.items() if o not in mdevs},
        )

    def _parts(
        self, held: Iterable[model.Claim]
    ) -> tuple[migration.MigrationPartition, ...]:
        return live_migration_wire.parts_of(
            held, self._accel.host.state, self._facts.read_driver
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlePairs:
    """New handles by old ones: uuids of mdevs, addresses of functions."""

    mdevs: Mapping[str, str]
    functions: Mapping[str, str]


def _check_known(
    server: MigratingServer,
    held: tuple[model.Claim, ...],
    use: connection.HostdevUse,
) -> None:
    """Check that a guest has what its server holds, and nothing else.

    PCI functions of Nova's own are Nova's to move, or to refuse.
    """
    if len(held) < len(server.slots):
        raise errors.ClaimError(
            server.uuid,
            "it can't be told now what stands in all of its slots; see"
            " `nova-accel inspect` for what can't be read",
        )
    handles = [a for claim in held for a in (claim.handle, *claim.members)]
    if lacking := [handle for handle in handles if not use.holds(handle)]:
        raise errors.ClaimError(
            server.uuid,
            f"its guest does not have {', '.join(lacking)}, which it holds:"
            " reboot it hard",
        )
    if strange := sorted(use.mdevs.difference(handles)):
        raise errors.ClaimError(
            server.uuid,
            f"its guest also has mdev {', '.join(strange)}, which its slots"
            " don't stand for, so nothing can be claimed in its place at"
            " the destination",
        )


def _pair(
    server: MigratingServer,
    before: tuple[migration.MigrationPartition, ...],
    after: tuple[migration.MigrationPartition, ...],
) -> Mapping[str, str]:
    pairs = migration.plan_pairs(before, after)
    if before and not pairs:
        raise errors.ClaimError(
            server.uuid,
            f"it brings {_text(before)}, and what Nova claimed for it here"
            f" is {_text(after)}",
        )
    return pairs


def _text(parts: tuple[migration.MigrationPartition, ...]) -> str:
    return ", ".join(sorted(part.profile for part in parts)) or "nothing"


def _refuse(server: MigratingServer, reasons: tuple[str, ...]) -> None:
    if reasons:
        raise errors.ClaimError(server.uuid, "; ".join(reasons))
