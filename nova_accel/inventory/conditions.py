# SPDX-License-Identifier: Apache-2.0
"""Fault and drain marks, put onto devices."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.model import pci

Faults = Mapping[str, model.Fault]
Drains = Mapping[str, model.Drain]


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
    told = (_problem(d, left.get(d.address)) for d in devices if d.fault)
    return _with(host, devices, told), healed


def ill_marks(host: model.HostState, ill: Faults) -> model.HostState:
    """Return a host whose ill devices are marked.

    For what each reading finds, and what heals by itself. It goes before
    ``mark``, which tells all problems.

    :param ill: what is wrong, by the device's address.
    """
    devices = tuple(_marked(d, ill.get(d.address)) for d in host.devices)
    return dataclasses.replace(host, devices=devices)


def drain_marks(host: model.HostState, drains: Drains) -> model.HostState:
    """Return a host whose drained devices are marked.

    A drain of a card is one of its parts too; that of a part is of that
    part only. One of a function that a device gives away, or that travels
    with it, is one of the device. One of a device that is not there
    changes nothing.

    :param drains: by address.
    """
    said: dict[str, list[model.Drain]] = {}
    for address, drain in sorted(drains.items()):
        device = device_of(host, address)
        if device is not None:
            said.setdefault(device.address, []).append(drain)
    devices = (
        _drained(d, (*said.get(d.parent, ()), *said.get(d.address, ())))
        for d in host.devices
    )
    told = (_notice(a, one) for a, them in said.items() for one in them)
    return _with(host, devices, told)


def unknown_marks(
    host: model.HostState, reason: str, is_first: bool
) -> model.HostState:
    """Return a host with the problem of unreadable fault and drain marks.

    :param reason: what can't be read, and why.
    :param is_first: the marks were never read: then each device may be at
        fault or drained, and takes no new server. Otherwise the last marks
        apply, and devices stay as they are.
    """
    effect = "the last marks of its devices apply"
    devices = host.devices
    if is_first:
        effect = "no device takes a new server"
        devices = tuple(
            dataclasses.replace(device, marks_unknown=reason)
            for device in devices
        )
    problem = model.Problem(
        where="[nova_accel] state_dir",
        reason=f"{reason}, so {effect}; let the user of this process read"
        " and write this directory",
    )
    return _with(host, devices, (problem,))


def device_of(host: model.HostState, address: str) -> model.Device | None:
    """Return the device that an address stands for, None for none.

    That of a card stands for the card, also where the card's only region
    is given away under it. That of a function that a device gives away (a
    VF), or that travels with it, stands for the device.

    :param address: as a person types it, see ``address_of``.
    """
    wanted = _spelled(address)
    exact = host.device(wanted)
    if exact is not None or not pci.is_address(wanted):
        return exact  # slots of mdevs are called the same on each device
    found = [d for d in host.devices if wanted in (*d.slots, *d.members)]
    # The VF of a region travels with its card, too.
    found.sort(key=lambda d: (wanted not in d.slots, not d.parent))
    return found[0] if found else None


def address_of(host: model.HostState, address: str) -> str:
    """Return an address as notes and devices have it.

    It is that of the device that it stands for; where there is none now,
    as a device would have it.

    :param address: as a person types it: in upper case, or without the
        domain 0000, as lspci prints it.
    """
    device = device_of(host, address)
    return device.address if device else _spelled(address)


def _spelled(address: str) -> str:
    plain = address.strip()
    for text in (plain.lower(), f"0000:{plain.lower()}"):
        if pci.is_address(text.partition("/")[0]):
            return text
    return plain


def _with(
    host: model.HostState,
    devices: Iterable[model.Device],
    told: Iterable[model.Problem],
) -> model.HostState:
    """Return a host with these devices, and with more problems."""
    problems = {*host.problems, *told}
    return dataclasses.replace(
        host,
        devices=tuple(devices),
        problems=tuple(sorted(problems, key=lambda p: (p.where, p.reason))),
    )


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


def _drained(
    device: model.Device, drains: Collection[model.Drain]
) -> model.Device:
    if not drains:
        return device
    return dataclasses.replace(
        device, drain=_joined(_reason(drain) for drain in drains)
    )


def _reason(drain: model.Drain) -> str:
    return drain.reason or "its operator gave no reason"


def _notice(address: str, drain: model.Drain) -> model.Problem:
    return model.Problem(
        where=address,
        reason=f"is drained, it takes no new server: {_reason(drain)} (since"
        f" {drain.when or '?'}); `placement-sync undrain {drain.address}`"
        " offers it again",
    )


def _marked(device: model.Device, fault: model.Fault | None) -> model.Device:
    if fault is None:
        return device
    reason = _joined(filter(None, (fault.reason, device.fault)))
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


def _problem(device: model.Device, fault: model.Fault | None) -> model.Problem:
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
