# SPDX-License-Identifier: Apache-2.0
"""Plan of an undo: servers that Nova's own driver can express."""

import dataclasses
from collections.abc import Iterator, Mapping

from nova_accel import model
from nova_accel.inventory.adoption import planner, records, reshape
from nova_accel.model import flavors

_AGAIN = "then run `nova-accel adopt undo` again"
_REMEDY = f"delete, shelve or move it, {_AGAIN}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedHost:
    """State of an adopted host.

    ``allocations`` are those of this library's providers, by consumer;
    ``claims`` those that nova-compute has published.
    """

    servers: Mapping[str, planner.NovaServer]
    allocations: Mapping[str, records.Allocations]
    claims: tuple[model.Claim, ...]


def build(plan: records.Plan, host: AdoptedHost) -> records.Plan:
    """Return the plan of the undo; with blockers it can't be applied.

    It has the servers that are on the host now: adopted ones, and new ones
    whose partitions are mdevs of the types that Nova's provider had.
    """
    servers, blockers = [], []
    for consumer in sorted(host.allocations):
        try:
            servers.append(_plan_server(plan, host, consumer))
        except reshape.PlanError as error:
            blockers.append(
                records.Blocker(
                    kind=records.Obstacle.NO_SUPPORT,
                    subject=consumer,
                    reason=str(error),
                    remedy=_REMEDY,
                )
            )
    return dataclasses.replace(
        plan,
        state=records.AdoptionState.UNDOING,
        servers=tuple(servers),
        blockers=tuple(blockers),
    )


def _plan_server(
    plan: records.Plan, host: AdoptedHost, consumer: str
) -> records.AdoptedServer:
    """Return the server of a consumer.

    :raises PlanError: it can't be handed back.
    """
    present = host.servers.get(consumer)
    if present is None or present.busy:
        raise reshape.PlanError(
            present.busy
            if present
            else "it has an allocation, and is no server of this host"
        )
    allocated = {p: dict(a) for p, a in host.allocations[consumer].items()}
    server = plan.server(consumer)
    if (
        server is None
        or server.own_amounts() != allocated
        or present.specs != server.specs_after
        or not _has_slots(host, server)
    ):
        server = _express_server(plan, host, present)
    if server.own_amounts() != allocated:
        raise reshape.PlanError("its claims differ from its allocations")
    return server


def _express_server(
    plan: records.Plan, host: AdoptedHost, present: planner.NovaServer
) -> records.AdoptedServer:
    """Return a server that was not adopted, as one of Nova's.

    :raises PlanError: it is none.
    """
    specs = present.specs or {}
    mdevs = [
        _express(plan, claim)
        for claim in host.claims
        if claim.consumer == present.uuid
    ]
    before = _express_specs(specs, mdevs)
    if any(key.startswith(flavors.NAMESPACE) for key in before):
        raise reshape.PlanError(f"its flavor has keys of {flavors.NAMESPACE}")
    return records.AdoptedServer(
        uuid=present.uuid,
        name=present.name,
        mdevs=tuple(sorted(mdevs, key=lambda mdev: mdev.uuid)),
        specs_before=before,
        specs_after=specs,
    )


def _has_slots(host: AdoptedHost, server: records.AdoptedServer) -> bool:
    """Return whether a server still has the slots that it was adopted with."""
    claimed = {
        (claim.provider, claim.slot)
        for claim in host.claims
        if claim.consumer == server.uuid
    }
    return claimed == {slot.key for slot in server.slots}


def _express(plan: records.Plan, claim: model.Claim) -> records.AdoptedMdev:
    """Return the mdev of a claim as one of Nova's.

    A provider of Nova has one type: that of the mdevs it was adopted with.

    :raises PlanError: Nova has no such provider, or it has another type.
    """
    native = next((n for n in plan.natives if n.address == claim.parent), None)
    sample = next(_list_samples(plan, claim), None)
    if (
        native is None
        or sample is None
        or native.inventories.keys() != {sample.native_class}
    ):
        raise reshape.PlanError(
            f"Nova's own driver can't express its {claim.profile} on"
            f" {claim.parent}"
        )
    return dataclasses.replace(
        sample,
        uuid=claim.handle,
        parent=claim.parent,
        native=native.uuid,
        slot=claim.slot,
    )


def _list_samples(
    plan: records.Plan, claim: model.Claim
) -> Iterator[records.AdoptedMdev]:
    """Yield adopted mdevs of a claim's profile and card."""
    return (
        mdev
        for server in plan.servers
        for mdev in server.mdevs
        if (mdev.profile, mdev.device) == (claim.profile, claim.device)
    )


def _express_specs(
    specs: Mapping[str, str], mdevs: list[records.AdoptedMdev]
) -> dict[str, str]:
    """Return extra specs of Nova's own classes for those of profiles."""
    classes = {name for mdev in mdevs for name in mdev.charges}
    native = {mdev.resource_class: mdev.native_class for mdev in mdevs}
    before = {}
    groups = {
        group.suffix: group
        for group in flavors.parse_groups(specs)
        if group.resources.keys() & native.keys()
    }
    for key, value in specs.items():
        kind, _, name = key.partition(":")
        suffix = kind.removeprefix("resources").removeprefix("trait")
        if suffix not in groups:
            before[key] = value
        elif kind == f"resources{suffix}" and name in native:
            before[f"{kind}:{native[name]}"] = value
        elif kind.startswith("resources") and name in classes:
            continue
        elif not name.startswith(("CUSTOM_VGPU_", "CUSTOM_MDEV_")):
            before[key] = value
    return before
