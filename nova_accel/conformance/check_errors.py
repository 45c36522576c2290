# SPDX-License-Identifier: Apache-2.0
"""Checks with one unreadable file of a host at a time."""

import dataclasses
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.conformance import check_hosts, check_plans, driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedLink,
    list_records,
)
from nova_accel.geometry import device_capacity
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci

# Errors of attribute reads: the device fails, it was removed, the service
# has no permission. Links fail only if they were removed
# (fs/kernfs/symlink.c); listing a directory does not fail.
ERRNOS = (errno.EIO, errno.ENOENT, errno.EACCES)
_IDENTIFIER = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+"
)
# Files below it belong to one device; other files to many.
_DEVICES = f"{fs.TOP}/devices/"


class UnreadableFileSource:
    """A source with one unreadable path."""

    def __init__(self, source: fs.FileSource, path: str, number: int) -> None:
        self._source, self._path, self._number = source, path, number

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        link_target = self._source.link(path)
        if link_target is not None:
            self._check(path)
        return link_target

    def content(self, path: str) -> bytes:
        """Return a regular file's bytes."""
        self._check(path)
        return self._source.content(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        self._check(path)
        return self._source.names(path)

    def mode(self, path: str) -> int:
        """Return the permission bits of a path."""
        self._check(path)
        return self._source.mode(path)

    def _check(self, path: str) -> None:
        if path == self._path:
            raise OSError(self._number, os.strerror(self._number))


def choose_paths(
    records: Mapping[str, Record], every: bool = False
) -> Iterator[tuple[str, int]]:
    """Yield the paths to make unreadable, each with the errno.

    They are the first and the last of each kind of path that was read, or
    all if ``every``. Paths that differ only in addresses and numbers are of
    one kind.
    """
    kinds: dict[str, list[str]] = {}
    for path, record in sorted(records.items()):
        if not isinstance(record, int | RecordedDirectory):
            kind = path if every else _IDENTIFIER.sub("#", path)
            kinds.setdefault(kind, []).append(path)
    ends = [path for kind in kinds.values() for path in (kind[0], kind[-1])]
    for path in dict.fromkeys(ends):
        is_link = isinstance(records[path], RecordedLink)
        for number in (errno.ENOENT,) if is_link else ERRNOS:
            yield path, number


def _make_unreadable(
    target: driver_calls.DriverUnderTest, path: str, number: int
) -> driver_calls.DriverUnderTest:
    source = UnreadableFileSource(target.source, path, number)
    return dataclasses.replace(target, source=source)


def check(
    target: driver_calls.DriverUnderTest,
    baseline: driver_calls.CallResult,
    every: bool,
) -> Iterator[Finding]:
    """Yield findings about a driver with one unreadable file at a time.

    :param baseline: the description with all files readable.
    :param every: try every file, instead of two of each kind.
    """
    host = target.reader()
    target.describe(host)
    before = driver_calls.list_devices(baseline)
    current_policy = check_plans.build_current_policy(target)
    arranged = dataclasses.replace(target, rules=current_policy)
    is_arranged = not arranged.arrange().value and bool(current_policy.rules)
    related = _RelatedDevices(host, before)
    for path, number in choose_paths(list_records(host.files), every):
        unreadable = _make_unreadable(target, path, number)
        reader = unreadable.reader()
        after = unreadable.describe(reader)
        where = f"{path} ({errno.errorcode[number]})"
        if is_arranged:
            arranged = dataclasses.replace(unreadable, rules=current_policy)
            yield from _check_arrange(arranged.arrange(reader), where)
        if after.error is not None:
            yield from _check_error(after.error, path, where)
            continue
        touched = related.find(path)
        if number != errno.ENOENT:
            reported = _list_reported(after, reader)
            yield from _check_counters(
                before, driver_calls.list_devices(after), where
            )
            yield from _check_reported(before, after, touched, reported, where)
        elif not path.startswith(_DEVICES):
            continue  # without the list of devices there are none
        yield from _check_unrelated(
            before, driver_calls.list_devices(after), touched, where
        )


def _check_arrange(
    result: driver_calls.CallResult, where: str
) -> Iterator[Finding]:
    """Check that an unreadable state causes no change."""
    if result.value:
        yield Finding(
            check="unreadable",
            where=where,
            reason=f"plan_arrange would {result.value[0]}, though all is as"
            " policy asks; what can't be read is not to be changed",
        )
    if not isinstance(result.error, errors.UnreadableError | None):
        yield Finding(
            check="unreadable",
            where=where,
            reason=f"plan_arrange raises {result.error!r}; it may raise"
            " UnreadableError only",
        )


def _check_error(error: Exception, path: str, where: str) -> Iterator[Finding]:
    is_allowed = isinstance(error, errors.UnreadableError)
    if is_allowed and not path.startswith(_DEVICES):
        return  # the driver can't read any device
    yield Finding(
        check="unreadable",
        where=where,
        reason=f"describe raises {error!r}; that costs every device of the"
        " card. Yield a Problem and go on",
    )


def _check_unrelated(
    before: Iterable[model.Device],
    after: Iterable[model.Device],
    touched: Collection[str],
    where: str,
) -> Iterator[Finding]:
    addresses = {device.address for device in after}
    for device in before:
        if device.address not in addresses and device.address not in touched:
            yield Finding(
                check="unreadable",
                where=where,
                reason=f"{device.address} is lost, though the file is"
                " another's",
            )


def _check_counters(
    before: Iterable[model.Device],
    after: Iterable[model.Device],
    where: str,
) -> Iterator[Finding]:
    remaining = {device.address for device in after}
    counters_before = {
        part: device.counters
        for device in before
        if device.address not in remaining
        for part in check_hosts.list_addresses(device)
    } | {device.address: device.counters for device in before}
    for device in after:
        counters = counters_before.get(device.address, {})
        for name, free in device_capacity.free_counters(device).items():
            if free > 0 and not counters.get(name):
                yield Finding(
                    check="unreadable",
                    where=where,
                    reason=f"{device.address} has {free} {name} to give, and"
                    " none when the file can be read; unknown is not free",
                )


def _check_reported(
    before: Iterable[model.Device],
    after: driver_calls.CallResult,
    touched: Collection[str],
    reported: frozenset[str],
    where: str,
) -> Iterator[Finding]:
    remaining = {device.address for device in driver_calls.list_devices(after)}
    for device in before:
        if device.address in remaining or device.address not in touched:
            continue
        if reported.isdisjoint(
            {*check_hosts.list_addresses(device), device.parent}
        ):
            yield Finding(
                check="unreadable",
                where=where,
                reason=f"{device.address} is gone without a word; yield a"
                " Problem that names it. Unknown is not absent",
            )


def _list_reported(
    result: driver_calls.CallResult, reader: host_reader.HostReader
) -> frozenset[str]:
    """Return the addresses of problems, and of unreadable devices."""
    problems = [
        item for item in result.value if isinstance(item, model.Problem)
    ]
    problems += reader.problems()
    return reader.unknown().union(p.address or p.where for p in problems)


class _RelatedDevices:
    """Index of the devices that a file's content may affect."""

    def __init__(
        self, host: host_reader.HostReader, devices: Iterable[model.Device]
    ) -> None:
        functions = _list_functions(host)
        self._near: dict[str, set[str]] = {}
        groups: dict[str, set[str]] = {}
        for function in functions:
            address = str(function.address)
            near = {address, *map(str, function.group_members)}
            near |= {str(function.physfn)} if function.physfn else set()
            self._near[address] = near
            groups.setdefault(str(function.iommu_group), set()).add(address)
        self._groups = groups
        self._families = [
            (
                {device.address for device in members},
                {part for device in members for part in _list_names(device)},
            )
            for members in check_hosts.group_by_card(devices).values()
        ]

    def find(self, path: str) -> frozenset[str]:
        """Return the addresses of the devices that a path may affect."""
        words = path.split("/")
        near = set(words)
        places = [word for word in words if pci.is_address(word)]
        if places:
            near = {w for w in near if not pci.is_address(w)}
            near |= self._near.get(places[-1], {places[-1]})
        if "iommu_groups" in words:
            near |= self._groups.get(words[-2], set())
            near |= self._groups.get(words[-1], set())
        return frozenset(
            address
            for addresses, parts in self._families
            if parts & near
            for address in addresses
        )


def _list_functions(
    host: host_reader.HostReader,
) -> tuple[pci.PciFunction, ...]:
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()


def _list_names(device: model.Device) -> set[str]:
    names = {p.handle for p in device.partitions}
    names |= {p.parent for p in device.partitions}
    names |= {parent for p in device.profiles for parent in p.handles}
    return names | check_hosts.list_addresses(device)
