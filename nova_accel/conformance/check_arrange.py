# SPDX-License-Identifier: Apache-2.0
"""Checks of ``plan_arrange`` where nothing has to be arranged."""

import dataclasses
from collections.abc import Iterator

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.conformance import driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

_SIZES = {model.Layout.EQUAL: False, model.Layout.MIXED: True}


def check(patient: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Yield what a driver arranges where all is as it was asked for."""
    cases = {
        "no line of policy": policy.Policy(),
        "policy that asks for what is there": as_it_is(patient),
    }
    for words, rules in cases.items():
        answer = dataclasses.replace(patient, rules=rules).arrange()
        if isinstance(answer.error, errors.UnreadableError):
            continue
        if answer.error is not None:
            yield Finding(
                check="arrange",
                where=words,
                reason=f"plan_arrange raises {answer.error!r}; it may raise"
                " UnreadableError only",
            )
        elif answer.value:
            yield Finding(
                check="arrange",
                where=words,
                reason=f"would {answer.value[0]}; nothing has to be done",
            )
        for effect in answer.effects:
            yield Finding(
                check="effect",
                where=f"plan_arrange, {words}",
                reason=f"causes {effect}",
            )


def as_it_is(patient: driver_calls.DriverUnderTest) -> policy.Policy:
    """Return a policy that asks each device for the mode that it is in."""
    host = patient.reader()
    lines = []
    for device in patient.state().devices:
        function = _function(host, device.address)
        if device.parent or function is None:
            continue
        lines.append(
            policy.Rule(
                address=device.address,
                num_vfs=function.num_vfs or None,
                is_mixed=_SIZES.get(device.geometry.layout),
                services=_services(host, device.address),
            )
        )
    return policy.Policy(rules=tuple(lines))


def _function(
    host: host_reader.HostReader, address: str
) -> pci.PciFunction | None:
    try:
        return host.function(address)
    except errors.UnreadableError:
        return None


def _services(host: host_reader.HostReader, address: str) -> str:
    """Return what a QAT device gives now, empty for others."""
    try:
        return host.attribute(address, "qat/cfg_services").strip()
    except errors.UnreadableError:
        return ""
