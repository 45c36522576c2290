# SPDX-License-Identifier: Apache-2.0
"""Devices set aside because something went wrong with them."""

import dataclasses
from collections.abc import Collection, Mapping

from nova_accel import model

Faults = Mapping[str, model.Fault]


def mark(
    host: model.HostState,
    faults: Faults,
    seen: Collection[str] | None = None,
) -> tuple[model.HostState, frozenset[str]]:
    """Return a host whose faulted devices are marked, and who has healed.

    A region heals when the host's driver shows that it holds something
    else than when it failed: somebody has programmed it since, or has
    switched the card off and on.

    :param faults: by the device's address.
    :param seen: the devices that were read just now, None for all: what is
        older may be from before the failure, and heals nothing.
    :returns: the host, and the addresses of which the fault is over.
    """
    healed = frozenset(
        device.address
        for device in host.devices
        if device.address in faults
        and (seen is None or device.address in seen)
        and _is_changed(device, faults[device.address])
    )
    left = {a: f for a, f in faults.items() if a not in healed}
    devices = tuple(_marked(d, left.get(d.address)) for d in host.devices)
    problems = {
        *host.problems,
        *(_problem(d, left.get(d.address)) for d in devices if d.fault),
    }
    marked = dataclasses.replace(
        host,
        devices=devices,
        problems=tuple(sorted(problems, key=lambda p: (p.where, p.reason))),
    )
    return marked, healed


def _marked(device: model.Device, fault: model.Fault | None) -> model.Device:
    if fault is None:
        return device
    reason = "; ".join(filter(None, (fault.reason, device.fault)))
    return dataclasses.replace(device, fault=reason)


def _is_changed(device: model.Device, fault: model.Fault) -> bool:
    """Return whether a region shows another function than before.

    Where that was unknown, nothing tells: only a person does. Nor does a
    region that shows nothing: AMD's driver forgets when it is unbound.
    """
    if device.region is None or fault.function is None:
        return False
    if not device.region.function:
        return False
    return device.region.function != fault.function


def _problem(
    device: model.Device, fault: model.Fault | None
) -> model.Problem:
    mend = ""
    if fault is not None:
        mend = (
            f" (since {fault.when or '?'}); put the card in order, then run"
            f" `nova-accel heal {device.address}`"
        )
    return model.Problem(
        where=device.address,
        reason=f"is set aside, nothing of it is offered: {device.fault}{mend}",
    )
