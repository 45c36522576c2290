# SPDX-License-Identifier: Apache-2.0
"""Devices of a host for one more profile of a server, best first."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.catalog.fpga import bitstreams
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.model import flavors, names, providers

_MDEV = "mdev"
_NO_RULES = policy.DeviceRules()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttachCandidate:
    """A profile of a device; ``provider`` is the UUID of its provider.

    ``bitstream`` is the one to load into its region, None for none.
    ``unoffered`` is why the operator's options do not offer the profile,
    empty if they do.
    """

    device: model.Device
    profile: model.Profile
    provider: str
    bitstream: model.Bitstream | None = None
    unoffered: str = ""

    @property
    def resources(self) -> Mapping[str, int]:
        """Return the resources of a flavor with this profile."""
        return {n: a for n, a in self.profile.charges.items() if a > 0}

    @property
    def required(self) -> frozenset[str]:
        """Return the required traits of a flavor with this profile."""
        traits = {self.profile.trait}
        if self.bitstream is not None:
            traits.add(names.PROGRAMMABLE_TRAIT)
            traits.add(names.interface_trait(self.bitstream.interface))
        return frozenset(traits)

    def request_group(self) -> flavors.RequestGroup:
        """Return the request group of a flavor with this profile."""
        return flavors.RequestGroup(
            suffix="_ACCEL", resources=self.resources, required=self.required
        )


def find(
    name: str,
    root: providers.ProviderRoot,
    host: model.HostState,
    has_bitstream: bool = False,
    rules: policy.DeviceRules = _NO_RULES,
) -> tuple[AttachCandidate, ...]:
    """Return every device that has a profile.

    :param name: name or trait of the profile in any spelling, an mdev type
        id of this host, a resource class, or an interface id of an FPGA
        region.
    :param has_bitstream: whether the request has a bitstream.
    :param rules: options of the operator.
    :raises MalformedError: no device of the host has the profile, or a
        bitstream is missing for an FPGA region or given for another device.
    """
    every = [
        AttachCandidate(
            device=device,
            profile=profile,
            provider=names.provider_uuid(root.uuid, device.address),
            unoffered=rules.of(device).explain_unoffered(profile.name),
        )
        for device in host.devices
        for profile in device.profiles
    ]
    candidates = tuple(
        candidate
        for candidate in every
        if mdev_names.is_profile_name(name, candidate.profile.name)
        or name == candidate.profile.trait
        or _has_interface(candidate.device.region, name)
    ) or _find_by_type_or_class(name, every)
    _check_bitstream(name, candidates, has_bitstream)
    if not candidates:
        offered = sorted({candidate.profile.name for candidate in every})
        raise errors.MalformedError(
            "profile of this host",
            name,
            f"one of: {', '.join(offered) or '(nothing)'}",
        )
    return candidates


def _check_bitstream(
    name: str, candidates: Iterable[AttachCandidate], has_bitstream: bool
) -> None:
    if any(
        (candidate.device.region is not None) != has_bitstream
        for candidate in candidates
    ):
        raise errors.MalformedError(
            "profile that can be attached",
            name,
            "one of an FPGA region, as a bitstream is given"
            if has_bitstream
            else "one with a bitstream: the image to load into the FPGA"
            " region",
        )


def with_bitstream(
    candidates: Iterable[AttachCandidate], bitstream: model.Bitstream
) -> tuple[AttachCandidate, ...]:
    """Return the candidates with a bitstream to load."""
    return tuple(
        dataclasses.replace(candidate, bitstream=bitstream)
        for candidate in candidates
    )


def _has_interface(region: model.Region | None, name: str) -> bool:
    """Return whether a name is an interface, or its trait, of a region."""
    if region is None:
        return False
    return any(
        name == names.interface_trait(interface)
        or names.normalize_fpga_id(name) == names.normalize_fpga_id(interface)
        for interface in region.interfaces
    )


def _find_by_type_or_class(
    name: str, every: Collection[AttachCandidate]
) -> tuple[AttachCandidate, ...]:
    """Return candidates by mdev type id of this host, or resource class.

    Neither is unique: they are accepted only if all candidates have the
    same profile.
    """
    candidates = tuple(
        candidate
        for candidate in every
        if name in (candidate.device.resource_class, *_type_ids(candidate))
    )
    profiles = {candidate.profile.name for candidate in candidates}
    return candidates if len(profiles) == 1 else ()


def _type_ids(candidate: AttachCandidate) -> Collection[str]:
    if candidate.device.technology != _MDEV:
        return ()
    return candidate.profile.handles.values()


def rank(
    candidates: Collection[AttachCandidate],
    open_providers: Collection[str],
    claims: Collection[model.Claim] = (),
) -> tuple[AttachCandidate, ...]:
    """Return the candidates with room, in the order to try them.

    First those whose larger profiles lose least, then the fullest, then by
    UUID of the provider.

    :param open_providers: UUIDs of the providers with room in Placement.
    :param claims: all claims of the host: whole functions in use have no
        partitions.
    """
    fitting = [
        candidate
        for candidate in candidates
        if candidate.provider in open_providers
        and not explain_refusal(candidate)
    ]
    return tuple(sorted(fitting, key=lambda c: _cost(c, claims)))


def explain_refusal(candidate: AttachCandidate) -> str:
    """Return why a device can't make its profile now, empty if it can."""
    device, name = candidate.device, candidate.profile.name
    if reason := _explain_marks(device):
        return reason
    if device.region is not None and candidate.bitstream is not None:
        reason = bitstreams.explain_mismatch(
            candidate.bitstream, device.region, device.vendor_id
        )
        if reason:
            return f"{device.address}: {reason}"
    if candidate.unoffered:
        return f"{device.address}: {candidate.unoffered}"
    if device_capacity.choose_place(device, name) is None:
        return f"{device.address} has no place for {name} now"
    return ""


def _explain_marks(device: model.Device) -> str:
    if device.drain:
        return f"{device.address} is drained: {device.drain}"
    if device.fault:
        return f"{device.address} is set aside: {device.fault}"
    if device.marks_unknown:
        return f"{device.address}: {device.marks_unknown}"
    if device.unnoted:
        return f"{device.address} takes no new server: {device.unnoted}"
    return ""


def list_refusals(
    candidates: Collection[AttachCandidate], open_providers: Collection[str]
) -> Iterator[str]:
    """Yield why each device can't make its profile.

    :param open_providers: UUIDs of the providers with room in Placement.
    """
    for candidate in candidates:
        reason = explain_refusal(candidate)
        if not reason and candidate.provider not in open_providers:
            reason = f"{candidate.device.address} has none left in Placement"
        if reason:
            yield reason


def _cost(
    candidate: AttachCandidate, claims: Collection[model.Claim]
) -> tuple[list[int], int, str]:
    device, profile = candidate.device, candidate.profile
    before = device_capacity.remaining(device)
    after = device_capacity.remaining(device, [profile.name])
    largest_first = sorted(
        device.profiles, key=lambda p: (p.size, p.name), reverse=True
    )
    losses = [
        before[p.name] - after[p.name]
        for p in largest_first
        if p.name in before
    ]
    used = len(device.partitions)
    if device.technology in model.UNDIVIDED:
        claimed = sum(claim.device == device.address for claim in claims)
        used = max(used, claimed)
    return losses, len(device.slots) - used, candidate.provider
