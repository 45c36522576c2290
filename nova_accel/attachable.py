# SPDX-License-Identifier: Apache-2.0
"""Which devices of a host can give one more profile, the best one first."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from nova_accel import (
    errors,
    flavors,
    matching,
    model,
    names,
    packing,
    providers,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A profile that a device has; ``provider`` is the device's uuid."""

    device: model.Device
    profile: model.Profile
    provider: str

    @property
    def resources(self) -> Mapping[str, int]:
        """Return what one of it takes of the device, as a flavor says."""
        return {n: a for n, a in self.profile.charges.items() if a > 0}

    @property
    def required(self) -> frozenset[str]:
        """Return the traits that a flavor would require for it."""
        return frozenset({self.profile.trait})

    def group(self) -> flavors.RequestGroup:
        """Return the request group that a flavor would have for it."""
        return flavors.RequestGroup(
            suffix="_ACCEL", resources=self.resources, required=self.required
        )


def find(
    wanted: str, root: providers.ProviderRoot, host: model.HostState
) -> tuple[Offer, ...]:
    """Return every device that has a profile of that name or trait.

    :raises MalformedError: no device of the host has it, or it is one of
        an FPGA region, whose bitstream belongs to a flavor.
    """
    known = [
        Offer(
            device=device,
            profile=profile,
            provider=names.provider_uuid(root.uuid, device.address),
        )
        for device in host.devices
        for profile in device.profiles
    ]
    found = tuple(o for o in known if is_named(wanted, o.profile))
    if any(offer.device.region is not None for offer in found):
        raise errors.MalformedError(
            "profile that can be attached",
            wanted,
            "one without a bitstream: an FPGA region is given with a flavor"
            " that names what it is to hold",
        )
    if not found:
        offered = sorted({o.profile.name for o in known})
        raise errors.MalformedError(
            "profile of this host",
            wanted,
            f"one of: {', '.join(offered) or '(nothing)'}",
        )
    return found


def is_named(wanted: str, profile: model.Profile) -> bool:
    """Return whether somebody means a profile: by name, or by trait."""
    if not wanted:
        return False
    spelled = names.custom(wanted)
    return (
        wanted in (profile.name, profile.trait)
        or spelled == names.custom(profile.name)
        or profile.trait.endswith(spelled.removeprefix(names.CUSTOM[:-1]))
    )


def rank(
    offers: Collection[Offer],
    candidates: Collection[str],
    claims: Collection[model.Claim] = (),
) -> tuple[Offer, ...]:
    """Return those with room, in the order to try them.

    First those of which the larger profiles lose least, then the fullest;
    of equals the provider's uuid decides.

    :param candidates: uuids of those that Placement would give.
    :param claims: all of the host: functions that are given as they are
        show nothing of what is taken.
    """
    fitting = [
        offer
        for offer in offers
        if offer.provider in candidates and not objection(offer)
    ]
    return tuple(sorted(fitting, key=lambda offer: _cost(offer, claims)))


def objection(offer: Offer) -> str:
    """Return why a device can't give a profile now, empty if it can."""
    device, name = offer.device, offer.profile.name
    if device.drain:
        return f"{device.address} is drained: {device.drain}"
    if device.fault:
        return f"{device.address} is set aside: {device.fault}"
    if packing.choose(device, name) is None:
        return f"{device.address} has no place for {name} now"
    return ""


def explain(
    offers: Collection[Offer], candidates: Collection[str]
) -> Iterator[str]:
    """Yield why each device can't give its profile."""
    for offer in offers:
        found = objection(offer)
        if not found and offer.provider not in candidates:
            found = f"{offer.device.address} has none left in Placement"
        if found:
            yield found


def _cost(
    offer: Offer, claims: Collection[model.Claim]
) -> tuple[list[int], int, str]:
    device, profile = offer.device, offer.profile
    before = packing.remaining(device)
    after = packing.remaining(device, [profile.name])
    larger = sorted(
        device.profiles, key=lambda p: (p.size, p.name), reverse=True
    )
    lost = [before[p.name] - after[p.name] for p in larger if p.name in before]
    free = len(device.slots) - max(
        len(device.partitions),
        sum(claim.device == device.address for claim in claims)
        if device.technology in matching.WHOLE
        else 0,
    )
    return lost, free, offer.provider
