# SPDX-License-Identifier: Apache-2.0
"""Plan of a spawn: preconditions, cleared slots, and the claims on them."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.discovery import snapshot
from nova_accel.model import flavors, names, providers
from virt_hooks.spawn import (
    claim_store,
    ownership,
    programs,
    release,
)

# Resource classes of the compute node itself (nova/virt/libvirt/driver.py,
# update_provider_tree): a group with only these asks for no accelerator.
_HOST_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """Partitions that a server needs; see ``Lifecycle.ensure``."""

    consumer: str
    root: providers.ProviderRoot
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...]
    allocations: model.Allocations
    bitstreams: Mapping[str, model.Bitstream]


class SpawnPlanner:
    """Plans the claims of spawns; callers hold the locks of the cards."""

    def __init__(
        self,
        store: claim_store.ClaimStore,
        release: release.PartitionRelease,
        programs: programs.Programs,
        host: snapshot.Snapshot,
    ) -> None:
        self._store = store
        self._release = release
        self._programs = programs
        self._host = host

    def plan(
        self,
        request: SpawnRequest,
        previous: tuple[model.Claim, ...],
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Clear the slots of a request, and return the claims on them.

        :param previous: the claims that the server has.
        :param host: the host, with its cards just read.
        :returns: the claims; those that the server had stay made.
        :raises ClaimError: this host can't make the partitions.
        :raises ActionError: a partition in a slot can't be removed.
        """
        consumer = request.consumer
        undecided = self._release.notes.list_undecided(consumer, previous)
        before = claim_store.made_only(previous) + self._decide(
            consumer, undecided
        )
        is_new = bool(request.allocations) and not undecided
        host = self._clear_slots(request, before, host, is_new)
        claims = claim_plan.plan(
            consumer,
            request.groups,
            request.slots,
            request.root,
            self._store.without_claims_of_others(consumer, host),
            request.allocations,
        )
        claims = ownership.plan_unless_made(before, claims)
        if any(claim.region for claim in claims):
            claims = self._programs.plan(
                claims, before, request.bitstreams, self._store.claims(), host
            )
        self._release.notes.check_serials(claims)
        self._release.notes.note_assigned(ownership.exclude(claims, before))
        return claims

    def _decide(
        self, consumer: str, undecided: tuple[model.Claim, ...]
    ) -> tuple[model.Claim, ...]:
        """Return undecided claims on functions that are the consumer's."""
        if not undecided:
            return ()
        return tuple(
            dataclasses.replace(claim, state=model.ClaimState.MADE)
            for claim in self._release.notes.exclude_unclean(
                consumer, undecided
            )
        )

    def _clear_slots(
        self,
        request: SpawnRequest,
        before: tuple[model.Claim, ...],
        host: model.HostState,
        is_new: bool,
    ) -> model.HostState:
        """Remove other servers' partitions and claims from some slots.

        :returns: the host, read again if a partition was removed.
        """
        consumer, root, slots = request.consumer, request.root, request.slots
        if request.allocations:
            check_all_available(
                consumer, root, slots, host, self._store.has_claim_on
            )
        # Before the eviction: after an error the other server keeps its
        # claims.
        self._release.clear_slots(consumer, root, slots, before, is_new)
        self._store.evict(consumer, slots)
        return self._host.state


def refresh_cards(
    host: snapshot.Snapshot,
    root: providers.ProviderRoot,
    slots: tuple[model.Slot, ...],
    groups: Iterable[flavors.RequestGroup] = (),
    *,
    is_whole: bool = False,
) -> model.HostState:
    """Read the partitions in some slots; all cards if one is new.

    :param groups: those that request the slots.
    :param is_whole: read the cards of these slots completely.
    """
    slot_providers = {slot.provider for slot in slots}
    addresses = {
        device.address
        for device in ownership.devices_of(root, host.state, slots)
    }
    if len(addresses) < len(slot_providers):
        return host.refresh()
    places = () if is_whole else [slot.identifier for slot in slots]
    traits = [trait for group in groups for trait in group.required]
    return host.refresh_cards(addresses, places, traits)


def check_allocated(
    consumer: str,
    groups: Sequence[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    host: model.HostState,
) -> None:
    """Check that a server whose flavor names a profile has a slot.

    Only profiles that a device of this host offers count: operators mark
    hosts and Nova's own vGPUs with traits of any name.

    :raises ClaimError: it has none; the server would start without its
        device.
    """
    profile_traits = {
        p.trait for device in host.devices for p in device.profiles
    }
    profile_traits |= {
        trait
        for device in host.devices
        if device.region
        for trait in device.traits
        if trait.startswith((names.FUNCTION_PREFIX, names.INTERFACE_PREFIX))
    }
    named = sorted(
        trait
        for group in groups
        if group.resources.keys() - _HOST_CLASSES
        for trait in group.required & profile_traits
    )
    named += sorted(group.bitstream for group in groups if group.bitstream)
    if named and not tuple(slots):
        raise unassigned_error(
            consumer, f"the flavor asks for {', '.join(named)}", named
        )


def unassigned_error(
    consumer: str, reason: str, missing: Iterable[str]
) -> errors.ClaimError:
    """Return the error of a server that Nova has assigned no slot.

    :param reason: why it should have one.
    :param missing: what it does not get, for its owner.
    """
    return errors.ClaimError(
        consumer,
        f"{reason}, but Nova claimed no slot on this host: its view of the"
        " provider tree is old; the next periodic update repairs it",
        public=f"its host can't give it {', '.join(sorted(missing))} now",
    )


def check_available(consumer: str, device: model.Device) -> None:
    """Check that a device may be assigned to a new server.

    The scheduler may have selected it before Placement was updated. Faults
    of regions are checked when the regions are planned.

    :raises ClaimError: the device is drained or at fault, or this is
        unknown, or its servers can't be noted; nothing was changed.
    """
    reason = f"is drained: {device.drain}" if device.drain else ""
    if device.marks_unknown:
        reason = f"may be drained or at fault: {device.marks_unknown}"
    if device.fault and device.region is None:
        reason = f"is set aside: {device.fault}"
    if device.unnoted:
        reason = f"is closed: {device.unnoted}"
    if reason:
        raise errors.ClaimError(
            consumer, f"{device.address} {reason}; it takes no new server"
        )


def check_all_available(
    consumer: str,
    root: providers.ProviderRoot,
    slots: Iterable[model.Slot],
    host: model.HostState,
    has_claim_on: Callable[[str, str], bool],
) -> None:
    """Check that the devices of some slots may be assigned to a server.

    :param has_claim_on: returns whether a consumer has anything of a
        provider: such a server keeps what it has.
    :raises ClaimError: see ``check_available``.
    """
    for device in ownership.devices_of(root, host, slots):
        provider = ownership.provider_of(root, device.address)
        if not has_claim_on(consumer, provider):
            check_available(consumer, device)
