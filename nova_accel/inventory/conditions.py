# SPDX-License-Identifier: Apache-2.0
"""Fault and drain marks of devices.

Each ``mark_`` function returns a copy of the host with marked devices and
a problem for each mark.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.model import pci

Faults = Mapping[str, model.Fault]
Drains = Mapping[str, model.Drain]


def mark_faults(
    host: model.HostState,
    faults: Faults,
    fresh: Collection[str] | None = None,
) -> tuple[model.HostState, frozenset[str]]:
    """Return a host with marked faulted devices, and the healed ones.

    A region heals when the host's driver shows another function than at
    the failure: it was programmed since, or the card was power-cycled.

    :param faults: by address of the device.
    :param fresh: addresses of the devices that were read just now, None
        for all. Others may have been read before the failure and don't
        heal.
    :returns: the host, and the addresses whose fault is over.
    """
    healed = frozenset(
        device.address
        for device in host.devices
        if device.address in faults
        and (fresh is None or device.address in fresh)
        and _has_other_function(device, faults[device.address])
    )
    present = {a: f for a, f in faults.items() if a not in healed}
    devices = tuple(
        _add_fault(d, present.get(d.address)) for d in host.devices
    )
    problems = (
        _report_fault(d, present.get(d.address)) for d in devices if d.fault
    )
    return _update(host, devices, problems), healed


def mark_unhealthy(host: model.HostState, faults: Faults) -> model.HostState:
    """Return a host with marked unhealthy devices.

    These faults are found in each reading and are not stored. Call it
    before ``mark_faults``, which reports the problems of both.

    :param faults: by address of the device.
    """
    devices = tuple(_add_fault(d, faults.get(d.address)) for d in host.devices)
    return dataclasses.replace(host, devices=devices)


def mark_unnoted(host: model.HostState, reason: str) -> model.HostState:
    """Return a host on which the servers of functions can't be noted.

    A server that got such a function now could leave it unclean without a
    note. The functions themselves are in order: those that servers have are
    released as always.

    :param reason: see ``find_unnoted``.
    """
    unnoted = find_unnoted(host.devices, reason)
    devices = tuple(
        dataclasses.replace(device, unnoted=reason)
        if device.address in unnoted
        else device
        for device in host.devices
    )
    problems = (
        model.Problem.of_device(address, f"takes no new server: {reason}")
        for address in unnoted
    )
    return _update(host, devices, problems)


def find_unnoted(devices: Iterable[model.Device], reason: str) -> Faults:
    """Return why devices whose functions need a note are closed, by address.

    :param reason: why no note can be written; no device is at fault if empty.
    """
    return {
        device.address: model.Fault(address=device.address, reason=reason)
        for device in devices
        if reason and device.technology in model.NOTED
    }


def mark_drains(host: model.HostState, drains: Drains) -> model.HostState:
    """Return a host with marked drained devices.

    The drain of a card includes its parts, not the reverse. The drain of a
    slot or member function is one of its device. Drains of missing devices
    are ignored.

    :param drains: by address.
    """
    by_device: dict[str, list[model.Drain]] = {}
    for address, drain in sorted(drains.items()):
        device = find_device(host, address)
        if device is not None:
            by_device.setdefault(device.address, []).append(drain)
    devices = (
        _add_drains(
            d, (*by_device.get(d.parent, ()), *by_device.get(d.address, ()))
        )
        for d in host.devices
    )
    problems = (
        _report_drain(address, drain)
        for address, device_drains in by_device.items()
        for drain in device_drains
    )
    return _update(host, devices, problems)


def mark_unknown(
    host: model.HostState, reason: str, is_first: bool
) -> model.HostState:
    """Return a host whose fault and drain marks can't be read.

    :param reason: the file that can't be read, and why.
    :param is_first: True if the marks were never read: then each device
        may be faulted or drained, and accepts no new server. Otherwise the
        last marks apply, and devices don't change.
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
    return _update(host, devices, (problem,))


def find_device(host: model.HostState, address: str) -> model.Device | None:
    """Return the device of an address, None without one.

    The address of a slot (a VF) or member function is one of its device.
    The address of a card is the card's, even if its only region has the
    same slot.

    :param address: as a user types it, see ``resolve_address``.
    """
    normalized = _normalize(address)
    exact = host.device(normalized)
    if exact is not None or not pci.is_address(normalized):
        return exact  # slot names of mdevs are not unique
    devices = [d for d in host.devices if normalized in (*d.slots, *d.members)]
    # The VF of a region is also a member of its card.
    devices.sort(key=lambda d: (normalized not in d.slots, not d.parent))
    return devices[0] if devices else None


def resolve_address(host: model.HostState, address: str) -> str:
    """Return the address of the device of an address.

    Without such a device it returns the normalized address.

    :param address: as a user types it: in upper case, or without the domain
        0000, as lspci prints it.
    """
    device = find_device(host, address)
    return device.address if device else _normalize(address)


def _normalize(address: str) -> str:
    text = address.strip()
    for candidate in (text.lower(), f"0000:{text.lower()}"):
        if pci.is_address(candidate.partition("/")[0]):
            return candidate
    return text


def _update(
    host: model.HostState,
    devices: Iterable[model.Device],
    problems: Iterable[model.Problem],
) -> model.HostState:
    """Return a host with other devices and with additional problems."""
    every = {*host.problems, *problems}
    return dataclasses.replace(
        host,
        devices=tuple(devices),
        problems=tuple(sorted(every, key=lambda p: (p.where, p.reason))),
    )


def _join(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


def _add_drains(
    device: model.Device, drains: Collection[model.Drain]
) -> model.Device:
    if not drains:
        return device
    return dataclasses.replace(
        device, drain=_join(_reason(drain) for drain in drains)
    )


def _reason(drain: model.Drain) -> str:
    reason = drain.reason or "its operator gave no reason"
    return f"{reason} ({drain.author})" if drain.author else reason


def _report_drain(address: str, drain: model.Drain) -> model.Problem:
    return model.Problem(
        where=address,
        address=address,
        reason=f"is drained, it takes no new server: {_reason(drain)} (since"
        f" {drain.when or '?'}); `nova-accel undrain {drain.address}`"
        " offers it again",
    )


def _add_fault(
    device: model.Device, fault: model.Fault | None
) -> model.Device:
    if fault is None:
        return device
    reason = _join(filter(None, (fault.reason, device.fault)))
    return dataclasses.replace(device, fault=reason)


def _has_other_function(device: model.Device, fault: model.Fault) -> bool:
    """Return whether a region shows another function than at its fault.

    False if the former function is unknown: then an operator has to heal
    the region. False if it shows none: AMD's driver loses it when unbound.
    """
    if device.region is None or fault.function is None:
        return False
    if not device.region.function:
        return False
    return device.region.function != fault.function


def _report_fault(
    device: model.Device, fault: model.Fault | None
) -> model.Problem:
    hint = ""
    if fault is not None:
        hint = (
            f" (since {fault.when or '?'}); put the card in order, then run"
            f" `nova-accel heal {device.address}`"
        )
    return model.Problem.of_device(
        device.address,
        f"is set aside, nothing of it is offered: {device.fault}{hint}",
    )
