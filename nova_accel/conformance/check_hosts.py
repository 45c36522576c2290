# SPDX-License-Identifier: Apache-2.0
"""Rules for all devices that a driver described of one host."""

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence

from nova_accel import model
from nova_accel.conformance import check_devices as rules_of_devices
from nova_accel.conformance.findings import Finding
from nova_accel.model import pci


def list_addresses(device: model.Device) -> frozenset[str]:
    """Return the addresses of a device, its members and its slots."""
    slots = {slot for slot in device.slots if pci.is_address(slot)}
    return frozenset({device.address, *device.members, *slots})


def group_by_card(
    devices: Iterable[model.Device],
) -> dict[str, tuple[model.Device, ...]]:
    """Return the devices by the address of their topmost parent."""
    parents = {device.address: device.parent for device in devices}
    groups: dict[str, list[model.Device]] = collections.defaultdict(list)
    for device in devices:
        top, seen = device.address, {device.address}
        while parents.get(top) and parents[top] not in seen:
            top = parents[top]
            seen.add(top)
        groups[top].append(device)
    return {top: tuple(members) for top, members in groups.items()}


def check_described(
    items: Sequence[object], driver: str, present: Collection[str]
) -> Iterator[Finding]:
    """Yield findings about the result of ``describe``.

    :param driver: the driver's name.
    :param present: the addresses of the host's PCI functions, also of
        those that can't be read.
    """
    devices = []
    for item in items:
        if isinstance(item, model.Problem):
            yield from _check_problem(item)
        elif not isinstance(item, model.Device):
            yield Finding(
                check="describe",
                where=repr(item)[:60],
                reason="is neither a model.Device nor a model.Problem",
            )
        elif findings := tuple(_check_types(item)):
            yield from findings
        else:
            devices.append(item)
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
    yield from _check_relations(devices)
    yield from _check_shared_functions(devices, present)


def _check_problem(problem: model.Problem) -> Iterator[Finding]:
    for name in ("where", "reason"):
        text = getattr(problem, name)
        if not isinstance(text, str) or not text.strip():
            yield Finding(
                check="problem",
                where=str(problem.where) or "(nowhere)",
                reason=f"{name} says nothing; name the device and the remedy",
            )


def _check_types(device: model.Device) -> Iterator[Finding]:
    """Yield a finding for each field of the wrong type."""
    for name, kind in (
        ("address", str),
        ("resource_class", str),
        ("slots", tuple),
        ("members", tuple),
        ("profiles", tuple),
        ("partitions", tuple),
        ("traits", frozenset),
        ("unread_traits", tuple),
    ):
        if not isinstance(getattr(device, name), kind):
            yield Finding(
                check="form",
                where=str(device.address),
                reason=f"{name} is no {kind.__name__}; devices are values,"
                " they are compared and kept",
            )


def _check_relations(devices: Sequence[model.Device]) -> Iterator[Finding]:
    addresses = [device.address for device in devices]
    handles = [p.handle for d in devices for p in d.partitions if p.handle]
    for check, values in (("address", addresses), ("partition", handles)):
        for value in sorted({v for v in values if values.count(v) > 1}):
            yield Finding(
                check=check, where=value, reason="is described twice"
            )
    tops = group_by_card(devices)
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


def _check_shared_functions(
    devices: Sequence[model.Device], present: Collection[str]
) -> Iterator[Finding]:
    """Yield functions that two devices name, or that do not exist."""
    owners: dict[str, str] = {}
    slot_owners: dict[str, str] = {}
    for top, members in group_by_card(devices).items():
        for device in members:
            yield from _check_addresses(device, top, owners, present)
            slots = device.slots if device.counters else ()
            for slot in filter(pci.is_address, slots):
                first = slot_owners.setdefault(slot, device.address)
                if first != device.address and owners.get(slot) == top:
                    yield Finding(
                        check="slot",
                        where=device.address,
                        reason=f"slot {slot} is one of {first} too; one"
                        " function can't go to two guests",
                    )


def _check_addresses(
    device: model.Device,
    top: str,
    owners: dict[str, str],
    present: Collection[str],
) -> Iterator[Finding]:
    for part in sorted(list_addresses(device)):
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
