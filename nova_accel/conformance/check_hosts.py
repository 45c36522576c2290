# SPDX-License-Identifier: Apache-2.0
"""Rules for all devices that a driver described of one host."""

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence

from nova_accel import model
from nova_accel.conformance import check_devices as rules_of_devices
from nova_accel.conformance.findings import Finding
from nova_accel.model import pci


def parts(device: model.Device) -> frozenset[str]:
    """Return the addresses and names that a device speaks for."""
    slots = {slot for slot in device.slots if pci.is_address(slot)}
    return frozenset({device.address, *device.members, *slots})


def families(
    devices: Iterable[model.Device],
) -> dict[str, tuple[model.Device, ...]]:
    """Return the devices by the address of their whole."""
    parents = {device.address: device.parent for device in devices}
    found: dict[str, list[model.Device]] = collections.defaultdict(list)
    for device in devices:
        top, seen = device.address, {device.address}
        while parents.get(top) and parents[top] not in seen:
            top = parents[top]
            seen.add(top)
        found[top].append(device)
    return {top: tuple(members) for top, members in found.items()}


def check_described(
    found: Sequence[object], driver: str, present: Collection[str]
) -> Iterator[Finding]:
    """Yield what is wrong with what a driver describes.

    :param driver: the driver's name.
    :param present: the addresses of the host's PCI functions, also of
        those that can't be read.
    """
    devices = []
    for one in found:
        if isinstance(one, model.Problem):
            yield from _problem(one)
        elif not isinstance(one, model.Device):
            yield Finding(
                check="describe",
                where=repr(one)[:60],
                reason="is neither a model.Device nor a model.Problem",
            )
        elif wrong := tuple(_form(one)):
            yield from wrong
        else:
            devices.append(one)
    for device in devices:
        for check, rules in rules_of_devices.RULES.items():
            for rule in rules:
                for reason in rule(device):
                    yield Finding(
                        check=check, where=device.address, reason=reason
                    )
        if device.plugin != driver:
            yield Finding(
                check="plugin",
                where=device.address,
                reason=f"plugin is {device.plugin!r}; its claims would find"
                f" no driver of that name, write {driver!r}",
            )
    yield from _relatives(devices)
    yield from _shared(devices, present)


def _problem(problem: model.Problem) -> Iterator[Finding]:
    for name in ("where", "reason"):
        text = getattr(problem, name)
        if not isinstance(text, str) or not text.strip():
            yield Finding(
                check="problem",
                where=str(problem.where) or "(nowhere)",
                reason=f"{name} says nothing; name the device and the mend",
            )


def _form(device: model.Device) -> Iterator[Finding]:
    """Yield fields that are of another type than they must be."""
    for name, kind in (
        ("address", str),
        ("resource_class", str),
        ("slots", tuple),
        ("members", tuple),
        ("profiles", tuple),
        ("partitions", tuple),
        ("traits", frozenset),
        ("unread", tuple),
    ):
        if not isinstance(getattr(device, name), kind):
            yield Finding(
                check="form",
                where=str(device.address),
                reason=f"{name} is no {kind.__name__}; devices are values,"
                " they are compared and kept",
            )


def _relatives(devices: Sequence[model.Device]) -> Iterator[Finding]:
    addresses = [device.address for device in devices]
    handles = [p.handle for d in devices for p in d.partitions if p.handle]
    for check, values in (("address", addresses), ("partition", handles)):
        for value in sorted({v for v in values if values.count(v) > 1}):
            yield Finding(
                check=check, where=value, reason="is described twice"
            )
    tops = families(devices)
    for top, members in tops.items():
        if any(device.address == top for device in members):
            continue
        for device in members:
            yield Finding(
                check="parent",
                where=device.address,
                reason=f"its parent {device.parent} is not described; yield"
                " the whole too, with counters {} if it is not offered",
            )
    yield from (
        Finding(
            check="parent",
            where=device.address,
            reason="is its own parent, or that of its parent",
        )
        for device in devices
        if device.parent and device.address in tops
    )


def _shared(
    devices: Sequence[model.Device], present: Collection[str]
) -> Iterator[Finding]:
    """Yield functions that two devices speak for, or that are not there."""
    owners: dict[str, str] = {}
    given: dict[str, str] = {}
    for top, members in families(devices).items():
        for device in members:
            yield from _strangers(device, top, owners, present)
            slots = device.slots if device.counters else ()
            for slot in filter(pci.is_address, slots):
                first = given.setdefault(slot, device.address)
                if first != device.address and owners.get(slot) == top:
                    yield Finding(
                        check="slot",
                        where=device.address,
                        reason=f"slot {slot} is one of {first} too; one"
                        " function can't go to two guests",
                    )


def _strangers(
    device: model.Device,
    top: str,
    owners: dict[str, str],
    present: Collection[str],
) -> Iterator[Finding]:
    for part in sorted(parts(device)):
        first = owners.setdefault(part, top)
        if first != top:
            yield Finding(
                check="address",
                where=device.address,
                reason=f"speaks for {part}, and so does {first}",
            )
        if pci.is_address(part) and part not in present:
            yield Finding(
                check="address",
                where=device.address,
                reason=f"speaks for {part}, which the host does not have",
            )
