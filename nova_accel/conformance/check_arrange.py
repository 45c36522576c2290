# SPDX-License-Identifier: Apache-2.0
"""Checks that ``plan_arrange`` plans nothing if nothing has to change."""

import dataclasses
from collections.abc import Iterator

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.conformance import driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

_IS_MIXED = {model.Layout.EQUAL: False, model.Layout.MIXED: True}


def check(target: driver_calls.DriverUnderTest) -> Iterator[Finding]:
    """Yield actions that a driver plans for devices in the right mode."""
    cases = {
        "no line of policy": policy.Policy(),
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
) -> policy.Policy:
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
    return policy.Policy(rules=tuple(lines))


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
