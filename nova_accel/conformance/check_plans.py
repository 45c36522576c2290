# SPDX-License-Identifier: Apache-2.0
"""Checks of the plans of a driver: for claims, and of ``plan_arrange``.

The claims are those that the devices allow. ``plan_arrange`` must plan
nothing if nothing has to change.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import get_args

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.conformance import check_hosts, driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, flavors, names, pci, providers

ROOT = providers.ProviderRoot(
    name="node", uuid="00000000-0000-4000-8000-000000000001"
)
_SERVER = "00000000-0000-4000-8000-000000000002"
# Limit of slots to try; a profile may be possible in some slots only.
_MAX_TRIES = 64
_IS_MIXED = {model.Layout.EQUAL: False, model.Layout.MIXED: True}


def check_claims(target: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Yield findings about the plans for claims on a host."""
    state = target.state()
    for members in check_hosts.group_by_card(state.devices).values():
        own = frozenset[str]().union(*map(check_hosts.list_addresses, members))
        for device in members:
            for claim in _list_existing_claims(device, state):
                yield from _check_claim(target, claim, own)
            yield from _check_profiles(target, device, state, own)


def _check_profiles(
    target: driver_calls.DriverUnderTest,
    device: model.Device,
    state: model.HostState,
    own: frozenset[str],
) -> Iterator[Finding]:
    """Check the plans for one more partition of each profile."""
    offered = device.profiles if device.counters else ()
    for profile in offered:
        if not profile.available:
            continue
        claim, reason = _plan_claim(device, profile, state)
        if claim is not None:
            yield from _check_claim(target, claim, own)
        else:
            yield Finding(
                check="claim",
                where=f"{device.address} {profile.name}",
                reason=f"is available, and can't be claimed: {reason}",
            )


def _list_existing_claims(
    device: model.Device, state: model.HostState
) -> tuple[model.Claim, ...]:
    """Return the claims of partitions that exist."""
    return tuple(
        claim_plan.claim_from_partition(device, partition, consumer=_SERVER)
        for partition in device.partitions
        if not partition.is_nameless
    )


def _plan_claim(
    device: model.Device, profile: model.Profile, state: model.HostState
) -> tuple[model.Claim | None, str]:
    """Return a claim of an available profile, or None and the reason."""
    group = flavors.RequestGroup(
        suffix="_A",
        resources={device.resource_class: 1},
        required=frozenset({profile.trait}),
    )
    used = {p.handle for p in device.partitions}
    used |= {p.parent for p in device.partitions if p.parent in device.slots}
    reason = "no slot is free"
    for slot in [s for s in device.slots if s not in used][:_MAX_TRIES]:
        try:
            claims = claim_plan.plan(
                _SERVER,
                (group,),
                (_build_slot(device, slot),),
                ROOT,
                state,
            )
        except errors.ClaimError as error:
            reason = error.reason
        else:
            if claims[0].state is model.ClaimState.PLANNED:
                return claims[0], ""
    return None, reason


def _build_slot(device: model.Device, identifier: str) -> model.Slot:
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, device.address),
        resource_class=device.resource_class,
        identifier=identifier,
    )


def _check_claim(
    target: driver_calls.DriverUnderTest,
    claim: model.Claim,
    own: frozenset[str],
) -> Iterator[Finding]:
    yield from _check_plans(target, claim, own)
    region = claim.region
    if region is not None and region.is_programmable:
        bitstream = _build_bitstream(region)
        yield from _check_plans(
            target, dataclasses.replace(claim, bitstream=bitstream), own
        )


def _build_bitstream(region: model.Region) -> model.Bitstream:
    return model.Bitstream(
        name="00000000-0000-4000-8000-000000000003",
        vendor="",
        path="/var/lib/nova/accel/bitstreams/example",
        function="0" * 31 + "4",
        interface=region.interfaces[0] if region.interfaces else "",
        sha512="0" * 128,
        size=1,
    )


def _check_plans(
    target: driver_calls.DriverUnderTest,
    claim: model.Claim,
    own: frozenset[str],
) -> Iterator[Finding]:
    """Call both plan methods twice, and check the plans."""
    where = f"{claim.device} {claim.profile} in {claim.slot or claim.handle}"
    own |= {claim.parent, claim.slot, claim.handle}
    plans: list[Sequence[actions.Action]] = []
    for name in ("plan_prepare", "plan_release"):
        method = getattr(target.driver, name)
        first = driver_calls.call(functools.partial(method, claim))
        copy = dataclasses.replace(claim)
        second = driver_calls.call(functools.partial(method, copy))
        at = f"{name} for {where}"
        if first.error is not None:
            yield Finding(
                check="plan", where=at, reason=f"raises {first.error!r}"
            )
            return
        for effect in first.effects:
            yield Finding(
                check="effect",
                where=at,
                reason=f"causes {effect}; a plan is made of the claim alone",
            )
        if first.value != second.value:
            yield Finding(
                check="plan",
                where=at,
                reason="gives two plans for one claim; a retry would not"
                " find its own work",
            )
        broken = tuple(check_actions(first.value, at, own))
        yield from broken
        if broken:
            return
        plans.append(first.value)
    if claim.state is model.ClaimState.PLANNED:
        yield from check_undone(plans[0], plans[1], where)


ACTIONS: tuple[type, ...] = get_args(actions.Action)
# Fields of actions that name a function or a parent of mdevs.
_ADDRESS_FIELDS = ("card", "function", "gpu", "parent", "slot")
# Removed together with the partition, or undone by libvirt.
_NEEDS_NO_RELEASE = (actions.SetVgpuParams, actions.BindDriver)


def check_actions(
    plan: object, where: str, own: Collection[str]
) -> Iterator[Finding]:
    """Yield findings about a list of actions.

    :param own: the functions, parents and slots that may be changed.
    """
    if not isinstance(plan, Sequence) or isinstance(plan, str):
        yield Finding(
            check="plan", where=where, reason=f"{plan!r} is no sequence"
        )
        return
    for action in plan:
        if not isinstance(action, ACTIONS):
            yield Finding(
                check="plan", where=where, reason=f"{action!r} is no action"
            )
            continue
        for name in _ADDRESS_FIELDS:
            place = getattr(action, name, None)
            if isinstance(place, str) and place not in own:
                yield Finding(
                    check="plan",
                    where=where,
                    reason=f"would {action}: {place} is not of the device",
                )


def check_undone(
    prepare: Sequence[actions.Action],
    release: Sequence[actions.Action],
    where: str,
) -> Iterator[Finding]:
    """Yield prepared actions that the release does not undo in order."""
    order = []
    for action in prepare:
        undo = action.undo()
        if undo is None or isinstance(action, _NEEDS_NO_RELEASE):
            continue
        positions = [
            n for n, step in enumerate(release) if _is_undo(step, undo)
        ]
        if not positions:
            yield Finding(
                check="release",
                where=where,
                reason=f"leaves behind what was prepared ({action}); return"
                f" {undo!r}",
            )
        order += positions[:1]
    if order != sorted(order, reverse=True):
        yield Finding(
            check="release",
            where=where,
            reason="undoes in another order than backwards; what was made"
            " last goes first",
        )


def _is_undo(action: actions.Action, undo: actions.Action) -> bool:
    """Return whether an action is equivalent to an undo."""
    if isinstance(action, actions.DestroyInstance) and isinstance(
        undo, actions.DestroyInstance
    ):
        return dataclasses.replace(undo, start=None) == dataclasses.replace(
            action, start=None
        ) and action.start in (None, undo.start)
    return action == undo


def check_arrange(target: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Yield actions that a driver plans for devices in the right mode."""
    cases = {
        "no line of policy": policy.DeviceRules(),
        "policy that asks for what is there": build_current_policy(target),
    }
    for words, rules in cases.items():
        result = dataclasses.replace(target, rules=rules).arrange()
        if isinstance(result.error, errors.UnreadableError):
            continue
        if result.error is not None:
            yield Finding(
                check="arrange",
                where=words,
                reason=f"plan_arrange raises {result.error!r}; it may raise"
                " UnreadableError only",
            )
        elif result.value:
            yield Finding(
                check="arrange",
                where=words,
                reason=f"would {result.value[0]}; nothing has to be done",
            )
        for effect in result.effects:
            yield Finding(
                check="effect",
                where=f"plan_arrange, {words}",
                reason=f"causes {effect}",
            )


def build_current_policy(
    target: driver_calls.DriverUnderTest,
) -> policy.DeviceRules:
    """Return a policy that asks each device for its current mode."""
    host = target.reader()
    lines = []
    for device in target.state().devices:
        function = _read_function(host, device.address)
        if device.parent or function is None:
            continue
        lines.append(
            policy.Rule(
                address=device.address,
                num_vfs=function.num_vfs or None,
                is_mixed=_IS_MIXED.get(device.geometry.layout),
                services=_read_services(host, device.address),
            )
        )
    return policy.DeviceRules(rules=tuple(lines))


def _read_function(
    host: host_reader.HostReader, address: str
) -> pci.PciFunction | None:
    try:
        return host.function(address)
    except errors.UnreadableError:
        return None


def _read_services(host: host_reader.HostReader, address: str) -> str:
    """Return the configured services of a QAT device, "" for others."""
    try:
        return host.attribute(address, "qat/cfg_services").strip()
    except errors.UnreadableError:
        return ""
