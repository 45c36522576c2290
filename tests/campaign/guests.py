# SPDX-License-Identifier: Apache-2.0
"""Devices of running guests and of claims: no other server gets one."""

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import model
from nova_accel.claims import matching
from nova_accel.host.state import claims_file
from nova_accel.model import names
from tests.campaign import world as worlds
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

#: A provider and the identifier of one of its slots.
Place = tuple[str, str]


def list_exposed(
    world: worlds.World, host: str, *, has_passed: bool
) -> Iterator[str]:
    """Yield the devices of guests that another server could get.

    A device with a claim is safe. Without a claim, as Nova has lost its
    server, Nova must not be able to assign its slot.

    :param has_passed: whether a pass has run: then Placement must not offer
        its slot either.
    """
    places = {(claim.provider, claim.slot) for claim in _claims(world, host)}
    unclaimed = {
        (guest, handle): find_places(world, host, handle)
        for guest, handle in _list_unclaimed(world, host)
    }
    places |= set().union(*unclaimed.values())
    assignable = _list_assignable(world, host)
    for (guest, handle), own in unclaimed.items():
        reason = ""
        # A card that hangs may not be read before the passes.
        if has_passed and not own:
            reason = "no device of the host has it"
        if own & assignable or any(
            handle in (slot, names.mdev_uuid(provider, slot))
            for provider, slot in assignable
        ):
            reason = "Nova can assign it"
        for provider in {provider for provider, _ in own}:
            count = sum(place[0] == provider for place in places)
            if has_passed and count_taken(world, provider) < count:
                reason = "Placement offers it"
        if reason:
            yield (
                f"{guest} on {host} runs with {handle}, which has no claim:"
                f" {reason}"
            )


def list_handles(claims: Iterable[model.Claim]) -> set[str]:
    """Return the handles of claims, those of their members included."""
    return {
        handle for claim in claims for handle in (claim.handle, *claim.members)
    }


def list_double(accel: lifecycle.Lifecycle) -> Iterator[str]:
    """Yield the slots that two claims have."""
    counts = collections.Counter((c.provider, c.slot) for c in accel.claims())
    for place, count in counts.items():
        if count > 1:
            yield f"{place} is claimed {count} times"


def list_unpublished(
    accel: lifecycle.Lifecycle, state_dir: str
) -> Iterator[str]:
    """Yield why other processes do not read the claims of nova-compute."""
    published = claims_file.ClaimsFile(state_dir).read()
    if not published.is_known:
        yield f"the claims file: {published.reason}"
        return
    claims, own = (
        {(claim.consumer, claim.handle) for claim in each}
        for each in (published.claims, accel.claims())
    )
    if claims != own:
        yield f"the claims file has {claims}, nova-compute {own}"


def count_taken(world: worlds.World, provider: str) -> int:
    """Return how many slots of a provider are allocated or reserved."""
    usages = world._get_provider_usages(provider)
    inventories = world._get_provider_inventory(provider)
    taken: int = max(
        record["reserved"] + usages[name]
        for name, record in inventories.items()
        if name not in names.MEASURES
    )
    return taken


def _claims(world: worlds.World, host: str) -> tuple[model.Claim, ...]:
    claims: tuple[model.Claim, ...] = world.computes[
        host
    ].driver._accel.claims()
    return claims


def _list_unclaimed(
    world: worlds.World, host: str
) -> Iterator[tuple[str, str]]:
    """Yield the devices of running guests that have no claim."""
    claimed = list_handles(_claims(world, host))
    for domain in world.connection(host)._vms.values():
        if domain.isActive():
            use = connection.parse_hostdevs(domain.XMLDesc(0))
            for handle in sorted({*use.mdevs, *use.functions} - claimed):
                yield domain.UUIDString(), handle


def find_places(world: worlds.World, host: str, handle: str) -> set[Place]:
    """Return the slots of a device of a guest."""
    places = set()
    for device in world.computes[host].driver._accel.host.state.devices:
        provider = world.provider(device.address, host)
        places |= {
            (provider, slot)
            for slot in device.slots
            if handle == matching.slot_handle(device, provider, slot)
            or handle in device.members
        }
    return places


def _list_assignable(world: worlds.World, host: str) -> set[Place]:
    """Return the slots that Nova would assign to a server."""
    tracker: Any = world.computes[host].manager.rt
    tree, places = tracker.provider_tree, set()
    for provider in tree.get_provider_uuids() if tree else ():
        for name, slots in tree.data(provider).resources.items():
            classes = tracker.assigned_resources.get(provider, {})
            assigned = classes.get(name, set())
            places |= {(provider, s.identifier) for s in slots - assigned}
    return places
