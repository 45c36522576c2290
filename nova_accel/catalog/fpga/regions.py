# SPDX-License-Identifier: Apache-2.0
"""FPGA regions: their traits, and checks before their use."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.model import names


def with_bitstreams(
    claims: Iterable[model.Claim],
    cached: Mapping[str, model.Bitstream],
) -> tuple[model.Claim, ...]:
    """Return claims with the bitstreams of their images.

    :param cached: bitstreams on this host, by the id of their image.
    """
    return tuple(
        dataclasses.replace(claim, bitstream=cached.get(claim.image))
        if claim.image
        else claim
        for claim in claims
    )


def traits(region: model.Region) -> frozenset[str]:
    """Return the traits of a region's function and interfaces."""
    interfaces = {names.interface_trait(i) for i in region.interfaces}
    if region.is_programmable:
        interfaces.add(names.PROGRAMMABLE_TRAIT)
    return names.fpga_function_traits(region.function) | interfaces


def check_functions(
    claims: Iterable[model.Claim], host: model.HostState
) -> None:
    """Check that regions have, or can load, the functions of their claims.

    It is for claims whose regions will be assigned now, not for regions
    that a guest has.

    :raises ClaimError: a region has another function.
    """
    for claim in claims:
        device = host.device(claim.device)
        if device is None or device.region is None:
            continue
        for reason in _list_objections(claim, device, device.region):
            raise errors.ClaimError(claim.consumer, reason)


def _list_objections(
    claim: model.Claim, device: model.Device, region: model.Region
) -> Iterator[str]:
    if device.fault:
        yield f"{device.address} is set aside: {device.fault}"
    function = region.function
    if claim.bitstream is not None:
        function = claim.bitstream.function
        reason = bitstreams.explain_mismatch(
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
    if not claim.functions <= names.fpga_function_traits(function):
        yield (
            f"{device.address} holds {_describe(function)}, but the flavor"
            f" requires {', '.join(sorted(claim.functions))}; another server"
            " was faster, or the function was changed by hand"
        )


def _describe(function: str | None) -> str:
    if function is None:
        return "a function that can't be read now"
    return f"function {function}" if function else "nothing"


def check_free(
    claims: Iterable[model.Claim],
    used: Collection[str],
    all_claims: Iterable[model.Claim],
) -> None:
    """Check that no other server has a region, or depends on its function.

    :param claims: claims whose regions will be assigned, and programmed
        where they have a bitstream.
    :param used: addresses of the functions that guests have.
    :param all_claims: the claims of all servers of this host.
    :raises ClaimError: another server has or needs the region.
    """
    owners = {
        name: other.consumer
        for other in all_claims
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
                verb = "programmed" if claim.bitstream else "assigned"
                cause = ""
                if name in dependents:
                    cause = ", which works only while its function stays"
                raise errors.ClaimError(
                    claim.consumer,
                    f"{claim.device} can't be {verb}: a server has"
                    f" {name}{cause}",
                )
