# SPDX-License-Identifier: Apache-2.0
"""Checks of a server's accelerators before a live migration.

``HostAbilities`` reads the versions and drivers that they compare.
"""

import dataclasses
import os
import threading
import types
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan, matching, migration
from nova_accel.host.sysfs import fs, host_reader, modules
from nova_accel.model import flavors, names
from virt_hooks.guest import connection
from virt_hooks.operations import live_migration_wire
from virt_hooks.spawn import lifecycle, spawn_checks

# libvirt's encoding of versions: 8006000 is 8.6.0 (virGetVersion).
_MAJOR, _MINOR = 1_000_000, 1_000
_NO_OTHER = (
    "the destination does not run nova-accel, or not for its accelerators:"
    " see `nova-accel inspect` and compute_driver there"
)


class HostAbilities:
    """Versions and drivers of one host; each call reads them again."""

    def __init__(self, root: str = "/") -> None:
        """Read the kernel's files below ``root``."""
        self._root = root

    def read_host(
        self, libvirt: int, qemu: int, has_post_copy: bool
    ) -> migration.MigrationHost:
        """Return the host; a field is empty if it is unknown.

        :param libvirt: its version in libvirt's encoding, like ``qemu``.
        """
        return migration.MigrationHost(
            libvirt=_version(libvirt),
            qemu=_version(qemu),
            kernel=os.uname().release,
            drivers=modules.read_versions(
                fs.Files(fs.DiskSource(self._root)), migration.DRIVERS
            ),
            has_post_copy=has_post_copy,
        )

    def read_driver(self, address: str) -> str:
        """Return the driver of a PCI function, empty for none or unknown."""
        reader = host_reader.HostReader(source=fs.DiskSource(self._root))
        try:
            function = reader.function(address)
        except errors.UnreadableError:
            return ""
        return (function.driver or "") if function else ""


def _version(number: int) -> migration.Version:
    if number <= 0:
        return ()
    return (number // _MAJOR, number // _MINOR % _MINOR, number % _MINOR)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigratingServer:
    """A server, with its slots and allocations on one host."""

    uuid: str
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...] = ()
    allocations: model.Allocations = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )


class MigrationChecks:
    """Checks servers that leave or arrive, and makes their partitions.

    Thread-safe. Every method raises ClaimError with the reasons.
    """

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        abilities: HostAbilities,
    ) -> None:
        self._accel = accel
        self._abilities = abilities
        self._guard = threading.Lock()
        self._expected: set[str] = set()

    def expected(self) -> frozenset[str]:
        """Return the servers with partitions here that have not arrived."""
        with self._guard:
            return frozenset(self._expected)

    def expect(self, uuids: Iterable[str]) -> None:
        """Expect servers for which an earlier service made partitions."""
        with self._guard:
            self._expected.update(uuids)

    def end_arrival(self, uuid: str) -> None:
        """Stop expecting a server: it is here, or does not come."""
        with self._guard:
            self._expected.discard(uuid)

    def describe_offers(
        self, server: MigratingServer, host: migration.MigrationHost
    ) -> str:
        """Return the text of partitions that this host could make.

        The destination sends it to the source.
        """
        offers = (
            live_migration_wire.offer_of(device, profile)
            for device in self._accel.host.state.devices
            for group in server.groups
            if (profile := matching.find_profile(group, device)) is not None
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
        destination_text: str | None,
    ) -> str:
        """Return the text of a server's partitions, for its destination.

        :param use: the hostdevs of its domain.
        :param destination_text: text that the destination has sent, None
            without any.
        :raises ClaimError: it can't leave, or not to that destination.
        :raises MalformedError: the text has another format.
        """
        claims = self._accel.claims_of(server.uuid)
        _check_complete(server, claims, use)
        parts = self._parts(claims)
        _refuse(server, migration.check_source(parts, host, limits))
        if destination_text is None:
            raise errors.ClaimError(server.uuid, _NO_OTHER)
        destination = live_migration_wire.parse_text(destination_text)
        _refuse(
            server,
            migration.check_destination(
                parts, host, destination.parts, destination.host
            ),
        )
        return live_migration_wire.to_text(
            live_migration_wire.WireHost(host=host, parts=parts)
        )

    def check_arrival(
        self,
        server: MigratingServer,
        host: migration.MigrationHost,
        source_text: str,
    ) -> None:
        """Check that the slots claimed here fit the server's partitions.

        No partition is made yet: Nova may end the migration without
        another call.

        :param source_text: text that the source has sent.
        :raises ClaimError: they do not fit.
        :raises MalformedError: the text has another format.
        """
        root, state = self._accel.root, self._accel.host.state
        if root is None:
            raise errors.ClaimError(server.uuid, _NO_OTHER)
        spawn_checks.check_allocated(
            server.uuid, server.groups, server.slots, state
        )
        slot_providers = {slot.provider for slot in server.slots}
        for device in state.devices:
            uuid = names.provider_uuid(root.uuid, device.address)
            if uuid in slot_providers:
                spawn_checks.check_available(server.uuid, device)
        planned = claim_plan.plan(
            server.uuid,
            server.groups,
            server.slots,
            root,
            state,
            server.allocations,
        )
        source = live_migration_wire.parse_text(source_text)
        parts = self._parts(planned)
        _refuse(
            server,
            migration.check_destination(
                source.parts, source.host, parts, host
            ),
        )
        _pair(server, source.parts, parts)

    def make_partitions(
        self, server: MigratingServer, source_text: str
    ) -> "HandlePairs":
        """Make a server's partitions; return new handles by old ones.

        The server is expected from now on, also after an error: the caller
        must call ``end_arrival``.

        :param source_text: text that the source has sent.
        :raises ClaimError: they can't be made, or don't fit the server's.
        :raises ActionError: the kernel refused.
        :raises MalformedError: the text has another format.
        """
        source = live_migration_wire.parse_text(source_text)
        with self._guard:
            self._expected.add(server.uuid)
        made = self._accel.ensure(
            server.uuid, server.groups, server.slots, server.allocations
        )
        handles = _pair(server, source.parts, self._parts(made))
        mdevs = {p.handle for p in source.parts if p.technology == "mdev"}
        return HandlePairs(
            mdevs={old: new for old, new in handles.items() if old in mdevs},
            functions={
                old: new for old, new in handles.items() if old not in mdevs
            },
        )

    def _parts(
        self, claims: Iterable[model.Claim]
    ) -> tuple[migration.MigrationPartition, ...]:
        return live_migration_wire.parts_of(
            claims, self._accel.host.state, self._abilities.read_driver
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlePairs:
    """New handles by old ones: uuids of mdevs, addresses of functions."""

    mdevs: Mapping[str, str]
    functions: Mapping[str, str]


def _check_complete(
    server: MigratingServer,
    claims: tuple[model.Claim, ...],
    use: connection.HostdevUse,
) -> None:
    """Check that a guest has the partitions of its claims and no others.

    Nova itself migrates or refuses its own PCI functions.
    """
    if len(claims) < len(server.slots):
        raise errors.ClaimError(
            server.uuid,
            "the partitions in some of its slots are unknown; see"
            " `nova-accel inspect` for what can't be read",
        )
    handles = [
        handle for claim in claims for handle in (claim.handle, *claim.members)
    ]
    if missing := [handle for handle in handles if not use.holds(handle)]:
        raise errors.ClaimError(
            server.uuid,
            f"its guest does not have {', '.join(missing)}, which is claimed"
            " for it: reboot it hard",
        )
    if unclaimed := sorted(use.mdevs.difference(handles)):
        raise errors.ClaimError(
            server.uuid,
            f"its guest also has mdev {', '.join(unclaimed)}, which has no"
            " slot, so no slot can be claimed for it at the destination",
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
            f"it has {_list_profiles(before)}, and Nova claimed"
            f" {_list_profiles(after)} for it here",
        )
    return pairs


def _list_profiles(parts: tuple[migration.MigrationPartition, ...]) -> str:
    return ", ".join(sorted(part.profile for part in parts)) or "nothing"


def _refuse(server: MigratingServer, reasons: tuple[str, ...]) -> None:
    if reasons:
        raise errors.ClaimError(server.uuid, "; ".join(reasons))
