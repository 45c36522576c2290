# SPDX-License-Identifier: Apache-2.0
"""Checks of a server's accelerators before a live migration.

They compare what both hosts have read, and raise ClaimError with the
reasons.
"""

import dataclasses
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.claims import migration
from virt_hooks.guest import connection
from virt_hooks.instance import instance_request
from virt_hooks.operations.migration import live_migration_wire

NO_OTHER = (
    "the destination does not run nova-accel, or not for its accelerators:"
    " see `nova-accel inspect` and compute_driver there"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlePairs:
    """New handles by old ones: uuids of mdevs, addresses of functions."""

    mdevs: Mapping[str, str]
    functions: Mapping[str, str]


def check_departure(
    server: instance_request.InstanceRequest,
    source: live_migration_wire.WireHost,
    limits: migration.MigrationLimits,
    destination_text: str | None,
) -> None:
    """Check that a server can leave its source for a destination.

    :param source: this host, with the server's partitions.
    :param destination_text: text that the destination has sent, None
        without any.
    :raises MalformedError: the text has another format.
    """
    _refuse(server, migration.check_source(source.parts, source.host, limits))
    if destination_text is None:
        raise errors.ClaimError(server.uuid, NO_OTHER)
    destination = live_migration_wire.parse_text(destination_text)
    _refuse(
        server,
        migration.check_destination(
            source.parts, source.host, destination.parts, destination.host
        ),
    )


def check_arrival(
    server: instance_request.InstanceRequest,
    source: live_migration_wire.WireHost,
    destination: live_migration_wire.WireHost,
) -> None:
    """Check that the slots claimed here fit the server's partitions.

    :param source: host that the server leaves.
    :param destination: this host, with the partitions planned here.
    """
    _refuse(
        server,
        migration.check_destination(
            source.parts, source.host, destination.parts, destination.host
        ),
    )


def check_complete(
    server: instance_request.InstanceRequest,
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
    handles = [handle for claim in claims for handle in claim.handles]
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


def pair_handles(
    server: instance_request.InstanceRequest,
    before: tuple[migration.MigrationPartition, ...],
    after: tuple[migration.MigrationPartition, ...],
) -> Mapping[str, str]:
    """Return the new handles by the old ones."""
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


def _refuse(
    server: instance_request.InstanceRequest, reasons: tuple[str, ...]
) -> None:
    if reasons:
        raise errors.ClaimError(server.uuid, "; ".join(reasons))
