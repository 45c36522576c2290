# SPDX-License-Identifier: Apache-2.0
"""FPGA regions and the groups of flavors that they can serve."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.fpga import bitstreams
from nova_accel.model import flavors, names


def wanted_functions(group: flavors.RequestGroup) -> frozenset[str]:
    """Return the traits of the functions that a group asks to find."""
    return _with_prefix(group, names.FUNCTION_PREFIX)


def _with_prefix(group: flavors.RequestGroup, prefix: str) -> frozenset[str]:
    return frozenset(t for t in group.required if t.startswith(prefix))


def can_serve(group: flavors.RequestGroup, device: model.Device) -> bool:
    """Return whether a device may serve a group, as far as can be told.

    Of a region whose function nobody can read now it may be the right
    one; a group that brings its own bitstream takes any.
    """
    region = device.region
    if region is None:
        return True
    asked = _with_prefix(group, names.INTERFACE_PREFIX)
    has = {names.interface_trait(one) for one in region.interfaces}
    if has and not asked <= has:
        return False
    if group.bitstream or region.function is None:
        return True
    return wanted_functions(group) <= function_traits(region.function)


def with_bitstreams(
    claims: Iterable[model.Claim],
    found: Mapping[str, model.Bitstream],
) -> tuple[model.Claim, ...]:
    """Return claims with what is to be loaded, where they want an image.

    :param found: bitstreams on this host, by the id of their image.
    """
    return tuple(
        dataclasses.replace(claim, bitstream=found.get(claim.image))
        if claim.image
        else claim
        for claim in claims
    )


def function_traits(function: str | None) -> frozenset[str]:
    """Return the traits of a region that holds a function, if it does."""
    return frozenset({names.function_trait(function)} if function else ())


def traits(region: model.Region) -> frozenset[str]:
    """Return the traits of what a region holds, and of what fits into it."""
    found = {names.interface_trait(one) for one in region.interfaces}
    if region.is_programmable:
        found.add(names.PROGRAMMABLE_TRAIT)
    return function_traits(region.function) | found


def check(claims: Iterable[model.Claim], host: model.HostState) -> None:
    """Check that regions hold, or can hold, what their servers want.

    For claims whose regions are to be handed over now, not for those that
    a guest has.

    :raises ClaimError: one does not; nothing was touched.
    """
    for claim in claims:
        device = host.device(claim.device)
        if device is None or device.region is None:
            continue
        for reason in _objections(claim, device, device.region):
            raise errors.ClaimError(claim.consumer, reason)


def _objections(
    claim: model.Claim, device: model.Device, region: model.Region
) -> Iterator[str]:
    if device.fault:
        yield f"{device.address} is set aside: {device.fault}"
    held = region.function
    if claim.bitstream is not None:
        held = claim.bitstream.function
        reason = bitstreams.objection(
            claim.bitstream, region, device.vendor_id
        )
        if reason:
            yield f"{device.address}: {reason}"
    elif claim.image:
        yield (
            f"bitstream {claim.image} is not on this host, and"
            f" {device.address} needs it; it is fetched from Glance when a"
            " server is created, rebuilt or moved here"
        )
    if not claim.functions <= function_traits(held):
        yield (
            f"{device.address} holds {_in_words(held)}, not what the flavor"
            f" wants ({', '.join(sorted(claim.functions))}); another server"
            " was faster, or the function was changed by hand"
        )


def _in_words(function: str | None) -> str:
    if function is None:
        return "what can't be read now"
    return f"function {function}" if function else "nothing"


def check_free(
    claims: Iterable[model.Claim],
    used: Collection[str],
    holders: Iterable[model.Claim],
) -> None:
    """Check that nobody else has a region, or depends on what it holds.

    :param claims: those whose regions are to be given; the ones with a
        bitstream are to be programmed.
    :param used: addresses of the functions that guests have.
    :param holders: the claims of all servers of this host.
    :raises ClaimError: somebody does; nothing was touched.
    """
    owners = {
        name: other.consumer
        for other in holders
        for name in (other.slot, *other.members)
    }
    for claim in claims:
        if claim.region is None:
            continue
        dependents = claim.region.dependents if claim.bitstream else ()
        for name in (claim.slot, *claim.members, *dependents):
            if name in used or owners.get(name, claim.consumer) != (
                claim.consumer
            ):
                verb = "programmed" if claim.bitstream else "given"
                why = ""
                if name in dependents:
                    why = ", which works only while its function stays"
                raise errors.ClaimError(
                    claim.consumer,
                    f"{claim.device} can't be {verb}: a server has"
                    f" {name}{why}",
                )
