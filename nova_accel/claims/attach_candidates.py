# SPDX-License-Identifier: Apache-2.0
"""Devices of a host that can serve one more profile, best first."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.fpga import bitstreams
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names, providers

_MDEV = "mdev"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttachCandidate:
    """A profile that a device has; ``provider`` is the device's uuid.

    ``bitstream`` is what is to be loaded into its region, None for none.
    """

    device: model.Device
    profile: model.Profile
    provider: str
    bitstream: model.Bitstream | None = None

    @property
    def resources(self) -> Mapping[str, int]:
        """Return what one of it takes of the device, as a flavor says."""
        return {n: a for n, a in self.profile.charges.items() if a > 0}

    @property
    def required(self) -> frozenset[str]:
        """Return the traits that a flavor would require for it."""
        found = {self.profile.trait}
        if self.bitstream is not None:
            found.add(names.PROGRAMMABLE_TRAIT)
            found.add(names.interface_trait(self.bitstream.interface))
        return frozenset(found)

    def group(self) -> flavors.RequestGroup:
        """Return the request group that a flavor would have for it."""
        return flavors.RequestGroup(
            suffix="_ACCEL", resources=self.resources, required=self.required
        )


def find(
    wanted: str,
    root: providers.ProviderRoot,
    host: model.HostState,
    is_loaded: bool = False,
) -> tuple[AttachCandidate, ...]:
    """Return every device that has a profile of that name or trait.

    Any spelling will do, a type id of this host too. An FPGA region is also
    meant by its interface.

    :param is_loaded: whether a bitstream is named.
    :raises MalformedError: no device of the host has it, or it is one of
        an FPGA region and no bitstream is named, or of none and one is.
    """
    known = [
        AttachCandidate(
            device=device,
            profile=profile,
            provider=names.provider_uuid(root.uuid, device.address),
        )
        for device in host.devices
        for profile in device.profiles
    ]
    found = tuple(
        offer
        for offer in known
        if mdev_names.is_spelling(wanted, offer.profile.name)
        or wanted == offer.profile.trait
        or _is_interface(wanted, offer.device.region)
    ) or _of_word(wanted, known)
    if any((o.device.region is not None) != is_loaded for o in found):
        raise errors.MalformedError(
            "profile that can be attached",
            wanted,
            "one of an FPGA region, beside a bitstream"
            if is_loaded
            else "one with a bitstream: the image of what the FPGA region is"
            " to hold",
        )
    if not found:
        offered = sorted({o.profile.name for o in known})
        raise errors.MalformedError(
            "profile of this host",
            wanted,
            f"one of: {', '.join(offered) or '(nothing)'}",
        )
    return found


def loaded(
    offers: Iterable[AttachCandidate], bitstream: model.Bitstream
) -> tuple[AttachCandidate, ...]:
    """Return offers of regions into which a bitstream is to be loaded."""
    return tuple(dataclasses.replace(o, bitstream=bitstream) for o in offers)


def _is_interface(wanted: str, region: model.Region | None) -> bool:
    """Return whether somebody means a region: by an interface it has."""
    if region is None:
        return False
    return any(
        wanted == names.interface_trait(interface)
        or names.fpga_id(wanted) == names.fpga_id(interface)
        for interface in region.interfaces
    )


def _of_word(
    wanted: str, known: Collection[AttachCandidate]
) -> tuple[AttachCandidate, ...]:
    """Return offers by an mdev type id of this host, or by resource class.

    Neither is a profile's name: they count where only one profile is meant.
    """
    found = tuple(
        offer
        for offer in known
        if wanted in (offer.device.resource_class, *_type_ids(offer))
    )
    return found if len({o.profile.name for o in found}) == 1 else ()


def _type_ids(offer: AttachCandidate) -> Collection[str]:
    if offer.device.technology != _MDEV:
        return ()
    return offer.profile.handles.values()


def rank(
    offers: Collection[AttachCandidate],
    candidates: Collection[str],
    claims: Collection[model.Claim] = (),
) -> tuple[AttachCandidate, ...]:
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


def objection(offer: AttachCandidate) -> str:
    """Return why a device can't give a profile now, empty if it can."""
    device, name = offer.device, offer.profile.name
    if device.drain:
        return f"{device.address} is drained: {device.drain}"
    if device.fault:
        return f"{device.address} is set aside: {device.fault}"
    if device.marks_unknown:
        return f"{device.address}: {device.marks_unknown}"
    if device.region is not None and offer.bitstream is not None:
        reason = bitstreams.objection(
            offer.bitstream, device.region, device.vendor_id
        )
        if reason:
            return f"{device.address}: {reason}"
    if device_capacity.choose(device, name) is None:
        return f"{device.address} has no place for {name} now"
    return ""


def explain(
    offers: Collection[AttachCandidate], candidates: Collection[str]
) -> Iterator[str]:
    """Yield why each device can't give its profile."""
    for offer in offers:
        found = objection(offer)
        if not found and offer.provider not in candidates:
            found = f"{offer.device.address} has none left in Placement"
        if found:
            yield found


def _cost(
    offer: AttachCandidate, claims: Collection[model.Claim]
) -> tuple[list[int], int, str]:
    device, profile = offer.device, offer.profile
    before = device_capacity.remaining(device)
    after = device_capacity.remaining(device, [profile.name])
    larger = sorted(
        device.profiles, key=lambda p: (p.size, p.name), reverse=True
    )
    lost = [before[p.name] - after[p.name] for p in larger if p.name in before]
    free = len(device.slots) - max(
        len(device.partitions),
        sum(claim.device == device.address for claim in claims)
        if device.technology in model.UNDIVIDED
        else 0,
    )
    return lost, free, offer.provider
