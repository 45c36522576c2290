# SPDX-License-Identifier: Apache-2.0
"""One reading of a host: each driver called, each failure isolated."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.discovery import plugin
from nova_accel.geometry import topology
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import host_reader, links
from nova_accel.model import pci

LOG = logging.getLogger(__name__)


def read(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.Policy,
) -> model.HostState:
    """Return the devices of a host, sorted by address.

    Drivers are asked in their order; what one has described the next ones
    leave alone. A driver that fails costs its own devices only: it becomes
    a problem, and what it had described before stays. Devices that the
    operator switched off are left out.

    :param host: a fresh reader; it looks at each file once.
    :param drivers: by name, as ``plugin.load`` returns them.
    """
    devices: dict[str, model.Device] = {}
    problems: list[model.Problem] = []
    taken: set[str] = set()
    complete = True
    for name, driver in drivers.items():
        described, failure = _ask(name, driver, host, rules, frozenset(taken))
        if failure is not None:
            complete = False
            problems.append(failure)
        for found in described:
            if isinstance(found, model.Problem):
                problems.append(found)
                continue
            if found.address in taken:
                problems.append(_twice(name, found))
                continue
            taken |= _parts(found)
            devices[found.address] = found
    problems += _unreadable(host, rules, devices.values())
    problems += gpu_reader.problems(host.gpus)
    if complete:
        problems += _adrift(host, devices.values())
    if rules.rules and complete:
        problems += _idle_lines(host, rules, devices.values(), problems)
    places = links.read(host, devices.values())
    return model.HostState(
        devices=tuple(
            device
            for device in sorted(
                topology.place(devices.values(), places), key=place
            )
            if not _is_off(device, rules)
        ),
        problems=tuple(
            sorted(set(problems), key=lambda p: (p.where, p.reason))
        ),
        unknown=host.unknown() - devices.keys(),
        complete=complete,
    )


def _unreadable(
    host: host_reader.HostReader,
    rules: policy.Policy,
    devices: Iterable[model.Device],
) -> Iterator[model.Problem]:
    """Yield what can't be read, except of functions of no interest.

    Those are neither accelerators, nor a part of one, nor does policy name
    them. A function whose class or ids can't be read may be anything.
    """
    parts = {part for device in devices for part in _parts(device)}
    for problem in host.problems():
        where = host_reader.subject(problem)
        function = _function(host, where)
        if (
            function is None
            or where in parts
            or not function.class_code
            or pci_ids.is_candidate(function)
            or rules.rule(where, function.vendor, function.product).is_specific
        ):
            yield problem


def _function(
    host: host_reader.HostReader, name: str
) -> pci.PciFunction | None:
    """Return the legible PCI function of that name that makes no mdevs."""
    try:
        parents = {parent.name for parent in host.mdev_parents()}
        return None if name in parents else host.function(name)
    except errors.UnreadableError:
        return None  # each driver that needs them has listed the problem


def _idle_lines(
    host: host_reader.HostReader,
    rules: policy.Policy,
    devices: Iterable[model.Device],
    problems: Iterable[model.Problem],
) -> tuple[model.Problem, ...]:
    """Return which lines of policy fit nothing, as far as can be told."""
    try:
        functions, parents = host.functions(), host.mdev_parents()
    except errors.UnreadableError:
        return ()  # each driver that needs them has said so
    present = [
        (str(function.address), function.vendor, function.product)
        for function in functions
    ]
    names = {parent.name for parent in parents} | host.unknown()
    names -= {address for address, _, _ in present}
    present += [(name, "", "") for name in sorted(names)]
    told = {host_reader.subject(problem) for problem in problems}
    return policy.check_lines(rules, present, tuple(devices), told)


def _adrift(
    host: host_reader.HostReader, devices: Iterable[model.Device]
) -> Iterator[model.Problem]:
    """Yield the mdevs that stand on nothing that makes mdevs."""
    try:
        mdevs, parents = host.mdevs(), host.mdev_parents()
    except errors.UnreadableError:
        return  # each driver that needs them has said so
    known = {parent.name for parent in parents} | host.unknown()
    known |= {p.handle for device in devices for p in device.partitions}
    for mdev in mdevs:
        if mdev.parent not in known and mdev.uuid not in known:
            yield model.Problem(
                where=mdev.uuid,
                reason=f"is an mdev on {mdev.parent}, which is no mdev parent"
                " (any more), so nothing accounts for it: load that device's"
                " driver again, or remove the mdev",
            )


def _ask(
    name: str,
    driver: plugin.Driver,
    host: host_reader.HostReader,
    rules: policy.Policy,
    taken: frozenset[str],
) -> tuple[list[model.Device | model.Problem], model.Problem | None]:
    """Return what a driver yields, and its failure or None."""
    found: list[model.Device | model.Problem] = []
    try:
        for one in driver.describe(host, rules, taken):
            if not isinstance(one, model.Device | model.Problem):
                raise TypeError(f"described {one!r}, which is no device")
            found.append(one)
    except errors.AcceleratorError as error:
        return found, _failed(name, str(error))
    except Exception as error:  # a vendor's own code: it may raise anything
        LOG.debug("driver %s failed", name, exc_info=True)
        return found, _failed(
            name, f"{error!r}; report it to whoever wrote the driver"
        )
    return found, None


def _failed(name: str, reason: str) -> model.Problem:
    return model.Problem(
        where=f"driver {name}",
        reason=f"failed, so devices of its kind may be missing: {reason}",
    )


def _twice(name: str, device: model.Device) -> model.Problem:
    return model.Problem(
        where=device.address,
        reason=f"driver {name} describes it again; the first one keeps it",
    )


def _parts(device: model.Device) -> set[str]:
    """Return every address that a device speaks for."""
    slots = (slot for slot in device.slots if pci.is_address(slot))
    return {device.address, *device.members, *slots}


def place(
    device: model.Device,
) -> tuple[bool, pci.PciAddress | str, int, str]:
    """Return a key that sorts PCI addresses by number, names behind.

    A part comes behind its whole.
    """
    whole = device.parent or device.address
    number = device.region.number + 1 if device.region else 0
    if pci.is_address(whole):
        return False, pci.parse_address(whole), number, device.address
    return True, whole, number, device.address


def _is_off(device: model.Device, rules: policy.Policy) -> bool:
    return rules.of(device).use is policy.DeviceUse.OFF
