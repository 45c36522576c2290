# SPDX-License-Identifier: Apache-2.0
"""Checks with one unreadable file of a host at a time."""

import dataclasses
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.conformance import check_arrange, check_hosts, driver_calls
from nova_accel.conformance.findings import Finding
from nova_accel.geometry import device_capacity
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci

# What reads of attributes fail with: the device says no, it has just gone,
# and the service may not. Links the kernel gives, or they are gone
# (fs/kernfs/symlink.c); directories it always lists.
ERRNOS = (errno.EIO, errno.ENOENT, errno.EACCES)
_PARTICULAR = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+"
)
# Below it are devices; what is above or beside speaks of many.
_DEVICES = f"{fs.TOP}/devices/"


class UnreadableFileSource:
    """A source of which one path can't be read."""

    def __init__(self, source: fs.FileSource, path: str, number: int) -> None:
        self._source, self._path, self._number = source, path, number

    def link(self, path: str) -> str | None:
        """Return where a link points, None for what is no link."""
        found = self._source.link(path)
        if found is not None:
            self._check(path)
        return found

    def content(self, path: str) -> bytes:
        """Return a regular file's bytes."""
        self._check(path)
        return self._source.content(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        self._check(path)
        return self._source.names(path)

    def _check(self, path: str) -> None:
        if path == self._path:
            raise OSError(self._number, os.strerror(self._number))


def choose(
    records: Mapping[str, fs.Record], every: bool = False
) -> Iterator[tuple[str, int]]:
    """Yield which paths to make unreadable, each with the errno.

    Of those that were read, the first and the last of each kind, where
    paths that differ in addresses and numbers only are of one kind; or
    every single one.
    """
    kinds: dict[str, list[str]] = {}
    for path, found in sorted(records.items()):
        if not isinstance(found, int | fs.RecordedDirectory):
            kind = path if every else _PARTICULAR.sub("#", path)
            kinds.setdefault(kind, []).append(path)
    ends = [one for kind in kinds.values() for one in (kind[0], kind[-1])]
    for path in dict.fromkeys(ends):
        is_link = isinstance(records[path], fs.RecordedLink)
        for number in (errno.ENOENT,) if is_link else ERRNOS:
            yield path, number


def _sickened(
    patient: driver_calls.DriverUnderTest, path: str, number: int
) -> driver_calls.DriverUnderTest:
    source = UnreadableFileSource(patient.source, path, number)
    return dataclasses.replace(patient, source=source)


def check(
    patient: driver_calls.DriverUnderTest,
    whole: driver_calls.CallResult,
    every: bool,
) -> Iterator[Finding]:
    """Yield what a driver makes wrong of files that can't be read.

    :param whole: what it describes where all can be read.
    :param every: whether to try each file, and not two of each kind.
    """
    host = patient.reader()
    patient.describe(host)
    before = driver_calls.devices(whole)
    as_it_is = check_arrange.as_it_is(patient)
    asked = dataclasses.replace(patient, rules=as_it_is)
    is_still = not asked.arrange().value and bool(as_it_is.rules)
    neighbours = _RelatedDevices(host, before)
    for path, number in choose(host.files.records(), every):
        sick = _sickened(patient, path, number)
        reader = sick.reader()
        after = sick.describe(reader)
        where = f"{path} ({errno.errorcode[number]})"
        if is_still:
            asked = dataclasses.replace(sick, rules=as_it_is)
            yield from _rearranged(asked.arrange(reader), where)
        if after.error is not None:
            yield from _raised(after.error, path, where)
            continue
        touched = neighbours.of(path)
        if number != errno.ENOENT:
            told = _told(after, reader)
            yield from _invented(before, driver_calls.devices(after), where)
            yield from _silent(before, after, touched, told, where)
        elif not path.startswith(_DEVICES):
            continue  # what lists devices is not there: nor are they
        yield from _lost(before, driver_calls.devices(after), touched, where)


def _rearranged(
    answer: driver_calls.CallResult, where: str
) -> Iterator[Finding]:
    """Check that nothing is changed because its state can't be read."""
    if answer.value:
        yield Finding(
            check="unreadable",
            where=where,
            reason=f"plan_arrange would {answer.value[0]}, though all is as"
            " policy asks; what can't be read is not to be changed",
        )
    if not isinstance(answer.error, errors.UnreadableError | None):
        yield Finding(
            check="unreadable",
            where=where,
            reason=f"plan_arrange raises {answer.error!r}; it may raise"
            " UnreadableError only",
        )


def _raised(error: Exception, path: str, where: str) -> Iterator[Finding]:
    is_told = isinstance(error, errors.UnreadableError)
    if is_told and not path.startswith(_DEVICES):
        return  # nothing of the technology can be read
    yield Finding(
        check="unreadable",
        where=where,
        reason=f"describe raises {error!r}; that costs every device of its"
        " kind. Yield a Problem and go on",
    )


def _lost(
    before: Iterable[model.Device],
    after: Iterable[model.Device],
    touched: Collection[str],
    where: str,
) -> Iterator[Finding]:
    found = {device.address for device in after}
    for device in before:
        if device.address not in found and device.address not in touched:
            yield Finding(
                check="unreadable",
                where=where,
                reason=f"{device.address} is lost, though the file is"
                " another's",
            )


def _invented(
    before: Iterable[model.Device],
    after: Iterable[model.Device],
    where: str,
) -> Iterator[Finding]:
    left = {device.address for device in after}
    known = {
        part: device.counters
        for device in before
        if device.address not in left
        for part in check_hosts.parts(device)
    } | {device.address: device.counters for device in before}
    for device in after:
        had = known.get(device.address, {})
        for name, free in device_capacity.free_counters(device).items():
            if free > 0 and not had.get(name):
                yield Finding(
                    check="unreadable",
                    where=where,
                    reason=f"{device.address} has {free} {name} to give, and"
                    " none when the file can be read; unknown is not free",
                )


def _silent(
    before: Iterable[model.Device],
    after: driver_calls.CallResult,
    touched: Collection[str],
    told: frozenset[str],
    where: str,
) -> Iterator[Finding]:
    found = {device.address for device in driver_calls.devices(after)}
    for device in before:
        if device.address in found or device.address not in touched:
            continue
        if told.isdisjoint({*check_hosts.parts(device), device.parent}):
            yield Finding(
                check="unreadable",
                where=where,
                reason=f"{device.address} is gone without a word; yield a"
                " Problem that names it. Unknown is not absent",
            )


def _told(
    answer: driver_calls.CallResult, reader: host_reader.HostReader
) -> frozenset[str]:
    """Return of what a problem is known, or that it is not known."""
    problems = [one for one in answer.value if isinstance(one, model.Problem)]
    problems += reader.problems()
    return reader.unknown().union(map(host_reader.subject, problems))


class _RelatedDevices:
    """Which devices a file may speak of."""

    def __init__(
        self, host: host_reader.HostReader, devices: Iterable[model.Device]
    ) -> None:
        functions = _functions(host)
        self._near: dict[str, set[str]] = {}
        groups: dict[str, set[str]] = {}
        for one in functions:
            address = str(one.address)
            near = {address, *map(str, one.group_members)}
            near |= {str(one.physfn)} if one.physfn else set()
            self._near[address] = near
            groups.setdefault(str(one.iommu_group), set()).add(address)
        self._groups = groups
        self._families = [
            (
                {device.address for device in members},
                {part for device in members for part in _parts(device)},
            )
            for members in check_hosts.families(devices).values()
        ]

    def of(self, path: str) -> frozenset[str]:
        """Return the addresses of devices whose reading it may change."""
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


def _functions(host: host_reader.HostReader) -> tuple[pci.PciFunction, ...]:
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()


def _parts(device: model.Device) -> set[str]:
    made = {p.handle for p in device.partitions}
    made |= {p.parent for p in device.partitions}
    made |= {parent for p in device.profiles for parent in p.handles}
    return made | check_hosts.parts(device)
