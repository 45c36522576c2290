# SPDX-License-Identifier: Apache-2.0
"""Plan of an undo: servers that Nova's own driver can express."""

import dataclasses
from collections.abc import Mapping

from nova_accel import model
from nova_accel.inventory.adoption import (
    alias_flavors,
    planner,
    records,
    reshape,
)
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
    whose partitions Nova can express: mdevs of the types that Nova's provider
    had, functions of ``[pci] device_spec`` with an alias. Of an adoption
    that was not completed, it has those that were not moved yet, too.
    """
    servers: list[records.AdoptedServer] = []
    blockers = []
    if plan.state is records.AdoptionState.APPLYING:
        servers += [s for s in plan.servers if s.uuid not in host.allocations]
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
    if plan.source is records.Source.CYBORG:
        raise reshape.PlanError(
            "Cyborg has no accelerator request for what it has"
        )
    specs = present.specs or {}
    is_pci = plan.source is records.Source.NOVA_PCI
    express = _express_function if is_pci else _express_mdev
    partitions = [
        express(plan, claim)
        for claim in host.claims
        if claim.consumer == present.uuid
    ]
    if is_pci:
        before = alias_flavors.restore(specs, _list_aliases(plan))
    else:
        before = _express_specs(specs, partitions)
    if any(key.startswith(flavors.NAMESPACE) for key in before):
        raise reshape.PlanError(f"its flavor has keys of {flavors.NAMESPACE}")
    return records.AdoptedServer(
        uuid=present.uuid,
        name=present.name,
        partitions=tuple(sorted(partitions, key=lambda p: p.handle)),
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


def _express_mdev(
    plan: records.Plan, claim: model.Claim
) -> records.AdoptedPartition:
    """Return the mdev of a claim as one of Nova's.

    A provider of Nova has one type: that of the mdevs it was adopted with.

    :raises PlanError: Nova has no such provider, or it has another type.
    """
    native = _find_native(plan, claim.parent)
    sample = _find_sample(plan, claim, claim.device)
    if (
        native is None
        or sample is None
        or native.inventories.keys() != {sample.native_class}
    ):
        raise _refusal(claim)
    return _copy(sample, claim, native.uuid)


def _express_function(
    plan: records.Plan, claim: model.Claim
) -> records.AdoptedPartition:
    """Return the function of a claim as one of Nova's.

    :raises PlanError: ``[pci] device_spec`` did not name it, or no adopted
        server had such a function, so that its alias is not known.
    """
    native = _find_native(plan, claim.slot, claim.device)
    sample = _find_sample(plan, claim)
    if sample is None or claim.slot not in plan.functions:
        raise _refusal(claim)
    provider = native.uuid if native else ""
    if bool(sample.units[0].provider) != bool(provider):
        raise _refusal(claim)
    return _copy(sample, claim, provider)


def _refusal(claim: model.Claim) -> reshape.PlanError:
    return reshape.PlanError(
        f"Nova's own driver can't express its {claim.profile} on"
        f" {claim.parent}"
    )


def _find_native(
    plan: records.Plan, *addresses: str
) -> records.NativeProvider | None:
    """Return Nova's provider of the first address that has one."""
    natives = {native.address: native for native in plan.natives}
    return next((natives[a] for a in addresses if a in natives), None)


def _find_sample(
    plan: records.Plan, claim: model.Claim, device: str = ""
) -> records.AdoptedPartition | None:
    """Return an adopted partition of a claim's profile.

    :param device: address of the card that it must be of, empty for any.
    """
    return next(
        (
            partition
            for server in plan.servers
            for partition in server.partitions
            if partition.profile == claim.profile
            and partition.device == (device or partition.device)
        ),
        None,
    )


def _copy(
    sample: records.AdoptedPartition, claim: model.Claim, native: str
) -> records.AdoptedPartition:
    """Return the partition of a claim, by one of the same profile."""
    unit = dataclasses.replace(
        sample.units[0], address=claim.parent, provider=native, request=""
    )
    return dataclasses.replace(
        sample,
        handle=claim.handle,
        parent=claim.parent,
        device=claim.device,
        units=(unit,),
        provider=claim.provider,
        slot=claim.slot,
    )


def _list_aliases(plan: records.Plan) -> dict[str, str]:
    """Return names of aliases by the traits of the adopted profiles."""
    return {
        trait: mapping.type_id
        for mapping in plan.flavors
        for group in flavors.parse_groups(mapping.after)
        for trait in group.required
    }


def _express_specs(
    specs: Mapping[str, str], partitions: list[records.AdoptedPartition]
) -> dict[str, str]:
    """Return extra specs of Nova's own classes for those of profiles."""
    classes = {name for each in partitions for name in each.charges}
    native = {p.resource_class: p.native_class for p in partitions}
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
