# SPDX-License-Identifier: Apache-2.0
"""One reading of a host: each driver called, each failure isolated."""

import dataclasses
import functools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.discovery import plugin
from nova_accel.geometry import topology
from nova_accel.host import bounded_calls, nvml_gpus
from nova_accel.host.sysfs import (
    error_counters,
    host_reader,
    hwdata,
    links,
)
from nova_accel.model import pci

LOG = logging.getLogger(__name__)

# Begins ``Problem.where`` of a driver that failed as a whole.
_DRIVER = "driver "


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostScan:
    """Result of a reading of the whole host.

    ``taken`` are the addresses that the drivers before each driver had
    described. ``nvidia_cards`` are the NVIDIA cards among the devices.
    """

    state: model.HostState
    taken: Mapping[str, frozenset[str]]
    nvidia_cards: frozenset[str]


def read(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
) -> model.HostState:
    """Return the devices of a host; see ``read_host``."""
    return read_host(host, drivers, rules).state


def read_host(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
    last: HostScan | None = None,
) -> HostScan:
    """Return the devices of a host, sorted by address.

    Drivers are called in order, each for every card; a device belongs to the
    first driver that describes it. The failure of a driver becomes a
    problem: devices that it described before are retained, and other drivers
    are not affected. Devices that the operator switched off are left out.

    A device of a card that does not answer in time is unknown.

    :param host: a fresh reader; it reads each file once. The reader of a
        card, to read only that.
    :param drivers: drivers by name, as ``plugin.load`` returns them. Of a
        card those that are called.
    :param last: of a card, the last reading of the host.
    """
    return bounded_calls.run(
        functools.partial(_read_host, host, drivers, rules, last)
    )


def _read_host(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
    last: HostScan | None,
) -> HostScan:
    results = describe_all(host, drivers, rules, last)
    devices, problems = results.devices, results.problems
    for device in devices.values():
        # Each file is read once: the caller gets these results again.
        error_counters.read_health(host, device)
    late = _find_late(host, rules, devices.values())
    devices = {a: d for a, d in devices.items() if a not in late}
    problems = [p for p in problems if p.address not in late]
    problems += _list_late(late)
    problems += _unreadable(host, rules, devices.values(), late)
    problems += nvml_gpus.problems(host.gpus)
    if last is None and results.complete:
        problems += _find_mdevs_without_parent(host, devices.values(), late)
        if rules.rules:
            problems += _unused_lines(host, rules, devices.values(), problems)
    nvidia_cards = links.list_cards(devices.values())
    if last is not None:
        nvidia_cards |= last.nvidia_cards
    host_topology = links.read(host, devices.values(), nvidia_cards)
    state = model.HostState(
        devices=tuple(
            hwdata.add_name_trait(device, host.files.source)
            for device in sorted(
                topology.add_topology_traits(devices.values(), host_topology),
                key=sort_key,
            )
            if not _is_off(device, rules)
        ),
        problems=tuple(
            sorted(set(problems), key=lambda p: (p.where, p.reason))
        ),
        unknown=(host.unknown() | late.keys()) - devices.keys(),
        complete=results.complete,
    )
    return HostScan(
        state=state, taken=results.taken, nvidia_cards=nvidia_cards
    )


@dataclasses.dataclass(slots=True, kw_only=True)
class _Descriptions:
    """Results of drivers; ``complete`` is False once one has failed."""

    devices: dict[str, model.Device] = dataclasses.field(default_factory=dict)
    problems: list[model.Problem] = dataclasses.field(default_factory=list)
    taken: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    complete: bool = True


def describe_all(
    host: host_reader.HostReader,
    drivers: Mapping[str, plugin.Driver],
    rules: policy.DeviceRules,
    last: HostScan | None = None,
) -> _Descriptions:
    """Return the results of drivers on a host, or on one card."""
    results, taken = _Descriptions(), set[str]()
    try:
        cards = host.cards() if last is None else (host,)
    except errors.UnreadableError:
        cards = (host,)  # each driver that needs the bus reports the error
    for name, driver in drivers.items():
        before = frozenset(taken)
        if last is not None:
            is_described_anew = drivers.keys() == last.taken.keys()
            before |= last.taken[name].difference(
                host.card_names if is_described_anew else ()
            )
        results.taken[name] = before
        for card in cards:
            described, failure = _describe(name, driver, card, rules, before)
            if failure is not None:
                results.complete = False
                results.problems.append(failure)
            for result in described:
                if isinstance(result, model.Problem):
                    results.problems.append(_with_address(result))
                elif result.address in taken | before:
                    results.problems.append(_described_twice(name, result))
                else:
                    taken |= list_addresses(result)
                    results.devices[result.address] = result
    return results


def _find_late(
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    devices: Iterable[model.Device],
) -> dict[str, str]:
    """Return the devices that did not answer in time, each with a path.

    What was read of the other functions of such a device is not used: it is
    a part of the truth. Of VFs the PF is returned.
    """
    paths = host.late()
    if not paths:
        return {}
    functions = {str(f.address): f for f in list_functions(host)}
    pfs = {
        str(child): address
        for address, function in functions.items()
        for child in function.virtual_functions
    }
    devices = tuple(devices)
    parts = {part for device in devices for part in list_addresses(device)}
    late = {
        pfs.get(name, name): path
        for name, path in paths.items()
        if name in parts
        or (pci.is_address(name) and _is_relevant(host, rules, name))
    }
    for device in devices:
        for name in (*list_addresses(device), device.parent):
            if name in late and not _is_off(device, rules):
                late.setdefault(device.address, late[name])
    return late


def list_functions(
    host: host_reader.HostReader,
) -> tuple[pci.PciFunction, ...]:
    try:
        return host.all_functions()
    except errors.UnreadableError:
        return ()  # the drivers report the error


def _list_late(late: Mapping[str, str]) -> Iterator[model.Problem]:
    for address, path in late.items():
        yield model.Problem.of_device(
            address,
            f"does not answer: a read of {path} did not end in"
            f" {bounded_calls.READ_S:.0f} s, so nothing more of it is"
            " assigned until it does; look for errors of its driver in the"
            " kernel's log (dmesg)",
        )


def _unreadable(
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    devices: Iterable[model.Device],
    late: Collection[str],
) -> Iterator[model.Problem]:
    """Yield the reader's problems, except those of irrelevant functions.

    :param late: devices whose problem is that they do not answer.
    """
    parts = {part for device in devices for part in list_addresses(device)}
    for problem in host.problems():
        address = problem.address
        if address not in late and (
            address in parts or _is_relevant(host, rules, address)
        ):
            yield problem


def _is_relevant(
    host: host_reader.HostReader, rules: policy.DeviceRules, address: str
) -> bool:
    """Return whether a function may be an accelerator, or a part of one.

    It is not if its ids are known, it is no accelerator, and policy does
    not name it.
    """
    function = _function(host, address)
    return (
        function is None
        or pci_ids.is_candidate(function)
        or rules.rule(address, function.vendor, function.product).is_specific
    )


def _function(
    host: host_reader.HostReader, name: str
) -> pci.PciFunction | None:
    """Return the PCI function of that name, None for mdev parents."""
    try:
        is_parent = host.mdev_parent(name) is not None
        return None if is_parent else host.function(name)
    except errors.UnreadableError:
        return None  # the drivers report the error


def _unused_lines(
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    devices: Iterable[model.Device],
    problems: Iterable[model.Problem],
) -> tuple[model.Problem, ...]:
    """Return a problem for each device_spec line that matches no device."""
    try:
        functions, parents = host.functions(), host.mdev_parents()
    except errors.UnreadableError:
        return ()  # the drivers report the error
    present = [
        (str(function.address), function.vendor, function.product)
        for function in functions
    ]
    names = {parent.name for parent in parents} | host.unknown()
    names -= {address for address, _, _ in present}
    present += [(name, "", "") for name in sorted(names)]
    reported = {problem.address for problem in problems}
    return policy.check_lines(rules, present, tuple(devices), reported)


def _find_mdevs_without_parent(
    host: host_reader.HostReader,
    devices: Iterable[model.Device],
    late: Collection[str],
) -> Iterator[model.Problem]:
    """Yield a problem for each mdev whose parent makes no mdevs.

    :param late: devices that did not answer; they are left out.
    """
    try:
        mdevs, parents = host.mdevs(), host.mdev_parents()
    except errors.UnreadableError:
        return  # the drivers report the error
    names = {parent.name for parent in parents} | host.unknown() | {*late}
    names |= {p.handle for device in devices for p in device.partitions}
    for mdev in mdevs:
        if mdev.parent not in names and mdev.uuid not in names:
            yield model.Problem.of_device(
                mdev.uuid,
                f"is an mdev on {mdev.parent}, which is no mdev parent"
                " (any more), so nothing accounts for it: load that device's"
                " driver again, or remove the mdev",
            )


def _describe(
    name: str,
    driver: plugin.Driver,
    card: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> tuple[list[model.Device | model.Problem], model.Problem | None]:
    """Return a driver's description of a card, and its failure or None."""
    results: list[model.Device | model.Problem] = []
    try:
        for result in driver.describe(card, rules, taken):
            if not isinstance(result, model.Device | model.Problem):
                raise TypeError(f"described {result!r}, which is no device")
            results.append(result)
    except errors.AcceleratorError as error:
        return results, _failed(name, str(error))
    except Exception as error:  # third-party code may raise anything
        LOG.debug("driver %s failed", name, exc_info=True)
        return results, _failed(
            name, f"{error!r}; report it to the author of the driver"
        )
    return results, None


def _with_address(problem: model.Problem) -> model.Problem:
    """Return a problem of a driver that does not set ``address``."""
    if problem.address or not pci.is_address(problem.where):
        return problem
    return dataclasses.replace(problem, address=problem.where)


def is_driver_failure(problem: model.Problem) -> bool:
    """Return whether a problem is the failure of a whole driver."""
    return problem.where.startswith(_DRIVER)


def _failed(name: str, reason: str) -> model.Problem:
    return model.Problem(
        where=f"{_DRIVER}{name}",
        reason=f"failed, so devices of its kind may be missing: {reason}",
    )


def _described_twice(name: str, device: model.Device) -> model.Problem:
    return model.Problem.of_device(
        device.address,
        f"driver {name} describes it again; the first one keeps it",
    )


def list_addresses(device: model.Device) -> set[str]:
    """Return the addresses of a device, its members and its slots."""
    slots = (slot for slot in device.slots if pci.is_address(slot))
    return {device.address, *device.members, *slots}


def sort_key(
    device: model.Device,
) -> tuple[bool, pci.PciAddress | str, int, str]:
    """Return the sort key of devices in a HostState.

    PCI addresses come first, by number, then other names. A region follows
    its card.
    """
    card = device.parent or device.address
    number = device.region.number + 1 if device.region else 0
    if pci.is_address(card):
        return False, pci.parse_address(card), number, device.address
    return True, card, number, device.address


def _is_off(device: model.Device, rules: policy.DeviceRules) -> bool:
    return rules.of(device).use is policy.DeviceUse.OFF
