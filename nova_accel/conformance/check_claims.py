# SPDX-License-Identifier: Apache-2.0
"""Checks of plans for the claims that a driver's devices allow."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.conformance import check_hosts, check_plans, driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.model import actions, flavors, names, providers

ROOT = providers.ProviderRoot(
    name="node", uuid="00000000-0000-4000-8000-000000000001"
)
_SERVER = "00000000-0000-4000-8000-000000000002"
# A profile may be possible in some slots only; more are not tried.
_MAX_TRIES = 64


def check(patient: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Yield what is wrong with a driver's plans on a host."""
    state = patient.state()
    for members in check_hosts.families(state.devices).values():
        own = frozenset[str]().union(*map(check_hosts.parts, members))
        for device in members:
            for claim in _made(device, state):
                yield from _check_claim(patient, claim, own)
            yield from _check_profiles(patient, device, state, own)


def _check_profiles(
    patient: driver_calls.DriverUnderTest,
    device: model.Device,
    state: model.HostState,
    own: frozenset[str],
) -> Iterator[Finding]:
    """Check the plans for one more partition of each profile."""
    offered = device.profiles if device.counters else ()
    for profile in offered:
        if not profile.available:
            continue
        claim, reason = _planned(device, profile, state)
        if claim is not None:
            yield from _check_claim(patient, claim, own)
        else:
            yield Finding(
                check="claim",
                where=f"{device.address} {profile.name}",
                reason=f"is available, and can't be claimed: {reason}",
            )


def _made(
    device: model.Device, state: model.HostState
) -> tuple[model.Claim, ...]:
    """Return the claims of partitions that exist."""
    return tuple(
        claim_plan.of_partition(device, partition, consumer=_SERVER)
        for partition in device.partitions
        if not partition.is_nameless
    )


def _planned(
    device: model.Device, profile: model.Profile, state: model.HostState
) -> tuple[model.Claim | None, str]:
    """Return a claim of a profile that can be made, or why there is none."""
    group = flavors.RequestGroup(
        suffix="_A",
        resources={device.resource_class: 1},
        required=frozenset({profile.trait}),
    )
    busy = {p.handle for p in device.partitions}
    busy |= {p.parent for p in device.partitions if p.parent in device.slots}
    reason = "no slot is free"
    for slot in [s for s in device.slots if s not in busy][:_MAX_TRIES]:
        try:
            found = claim_plan.plan(
                _SERVER,
                (group,),
                (_slot(device, slot),),
                ROOT,
                state,
            )
        except errors.ClaimError as error:
            reason = error.reason
        else:
            if found[0].state is model.ClaimState.PLANNED:
                return found[0], ""
    return None, reason


def _slot(device: model.Device, identifier: str) -> model.Slot:
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, device.address),
        resource_class=device.resource_class,
        identifier=identifier,
    )


def _check_claim(
    patient: driver_calls.DriverUnderTest,
    claim: model.Claim,
    own: frozenset[str],
) -> Iterator[Finding]:
    yield from _check_one(patient, claim, own)
    region = claim.region
    if region is not None and region.is_programmable:
        wanted = _bitstream(region)
        yield from _check_one(
            patient, dataclasses.replace(claim, bitstream=wanted), own
        )


def _bitstream(region: model.Region) -> model.Bitstream:
    return model.Bitstream(
        name="00000000-0000-4000-8000-000000000003",
        vendor="",
        path="/var/lib/nova/accel/bitstreams/example",
        function="0" * 31 + "4",
        interface=region.interfaces[0] if region.interfaces else "",
        sha512="0" * 128,
        size=1,
    )


def _check_one(
    patient: driver_calls.DriverUnderTest,
    claim: model.Claim,
    own: frozenset[str],
) -> Iterator[Finding]:
    """Ask for both plans, twice, and judge them."""
    where = f"{claim.device} {claim.profile} in {claim.slot or claim.handle}"
    own |= {claim.parent, claim.slot, claim.handle}
    answers: list[Sequence[actions.Action]] = []
    for name in ("plan_prepare", "plan_release"):
        method = getattr(patient.driver, name)
        once = driver_calls.ask(functools.partial(method, claim))
        again = dataclasses.replace(claim)
        twice = driver_calls.ask(functools.partial(method, again))
        at = f"{name} for {where}"
        if once.error is not None:
            yield Finding(
                check="plan", where=at, reason=f"raises {once.error!r}"
            )
            return
        for effect in once.effects:
            yield Finding(
                check="effect",
                where=at,
                reason=f"causes {effect}; a plan is made of the claim alone",
            )
        if once.value != twice.value:
            yield Finding(
                check="plan",
                where=at,
                reason="gives two plans for one claim; a retry would not"
                " find its own work",
            )
        wrong = tuple(check_plans.check_actions(once.value, at, own))
        yield from wrong
        if wrong:
            return
        answers.append(once.value)
    if claim.state is model.ClaimState.PLANNED:
        yield from check_plans.check_undone(answers[0], answers[1], where)
