# SPDX-License-Identifier: Apache-2.0
"""Attributes of NVIDIA's VFs in sysfs.

The files are in the directory ``nvidia`` of each VF: the type it has
(``current_vgpu_type``, 0 for none), the types it could have now
(``creatable_vgpu_types``), and, while it has one, where that is. Their
form is that of NVIDIA's own VFIO driver (nv-vfio-pci).
"""

import collections
import dataclasses
import errno
import re
from collections.abc import Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

_CURRENT = "nvidia/current_vgpu_type"
_CREATABLE = "nvidia/creatable_vgpu_types"
_PLACEMENT = "nvidia/placement_id"
_INSTANCE = "nvidia/gpu_instance_id"
# "1155  : NVIDIA L40S-24Q", below the header "ID    : vGPU Name"
_LINE = re.compile(r"\s*(\d+)\s*:\s*(\S.*?)\s*")
_HEADER = re.compile(r"\s*ID\s*:.*", re.IGNORECASE)
# What places and instances read while they are not set, and drivers before
# 580 that have no such files.
_NOTHING_YET = (errno.ENXIO, errno.ENOENT)
# How a number that stands for "none" is printed (u32 of -1).
_NO_NUMBER = 0xFFFFFFFF

_NO_GROUP = (
    "in no IOMMU group, so no guest can have a vGPU of it; switch the IOMMU"
    " on in the firmware and on the kernel's command line (intel_iommu=on,"
    " amd_iommu=on)"
)


_BARE = (
    f"without {_CURRENT}, unlike the card's other VFs; bind it to the nvidia"
    " driver, or enable the card's VFs anew"
)

Problems = dict[str, list[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypedVf:
    """One VF; ``current`` and ``creatable`` are None if unreadable.

    ``current`` is the decimal type id, ``0`` for none; ``creatable`` are
    the names (without brand) of the types it could have now, by id.
    ``has_group`` is False where no guest can have it for want of an IOMMU.
    """

    address: str
    current: str | None
    creatable: Mapping[str, str] | None = None
    start: int | None = None
    instance: str | None = None
    has_group: bool = True

    @property
    def is_free(self) -> bool:
        """Return whether it is known to hold no vGPU."""
        return self.current == "0"

    @property
    def makeable(self) -> frozenset[str]:
        """Return the names of the types that it would make now."""
        if not (self.is_free and self.has_group):
            return frozenset()
        return frozenset((self.creatable or {}).values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypedVfCard:
    """A card whose VFs have, or should have, types of their own.

    ``slots`` are the VFs that hold or may hold a vGPU, ``vfs`` those of
    them that tell. ``given_away`` are bound for guests as they are.
    """

    function: pci.PciFunction
    slots: tuple[str, ...]
    vfs: tuple[TypedVf, ...]
    given_away: tuple[str, ...]
    problems: tuple[model.Problem, ...]

    @property
    def address(self) -> str:
        """Return the PF's address."""
        return str(self.function.address)

    def creatable(self) -> Mapping[str, str]:
        """Return the names, by id, of all types that any VF lists."""
        found: dict[str, str] = {}
        for vf in self.vfs:
            found |= vf.creatable or {}
        return found


def read(
    host: host_reader.HostReader, function: pci.PciFunction
) -> TypedVfCard:
    """Return a card with its VFs; what can't be read is a problem."""
    faults: Problems = collections.defaultdict(list)
    slots = []
    vfs = []
    bare = []
    given_away = []
    for place in function.virtual_functions:
        name = str(place)
        vf = host.function(name)
        if vf is not None and vf.is_vfio_bound:
            given_away.append(name)
            continue
        found = _read_vf(host, name, faults)
        if found is None and vf is not None:
            bare.append(name)
            continue
        slots.append(name)
        if found is None:
            continue
        if vf is not None and vf.iommu_group is None:
            found = dataclasses.replace(found, has_group=False)
            faults[_NO_GROUP].append(name)
        vfs.append(found)
    if vfs and bare:
        faults[_BARE] = bare
    return TypedVfCard(
        function=function,
        slots=tuple(slots),
        vfs=tuple(vfs),
        given_away=tuple(given_away),
        problems=tuple(_fold(str(function.address), faults)),
    )


def has_type(host: host_reader.HostReader, function: pci.PciFunction) -> bool:
    """Return whether a function has a type of its own, as VFs only do."""
    try:
        host.attribute(str(function.address), _CURRENT)
    except errors.UnreadableError as error:
        return error.number != errno.ENOENT
    return True


def _fold(address: str, faults: Problems) -> Iterator[model.Problem]:
    """Yield one problem for all VFs that have the same."""
    for reason, places in faults.items():
        where = places[0] if len(places) == 1 else address
        who = ""
        if len(places) > 1:
            who = f"{len(places)} of its VFs ({places[0]} and on): "
        yield model.Problem(where=where, reason=f"{who}{reason}")


def _read_vf(
    host: host_reader.HostReader, name: str, faults: Problems
) -> TypedVf | None:
    """Return a VF, None for one that has no type of its own."""
    try:
        text = host.attribute(name, _CURRENT).strip()
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return None
        faults[_unreadable(_CURRENT, error)].append(name)
        return TypedVf(address=name, current=None)
    if not text.isdecimal():
        faults[f"{_CURRENT} is no number: {text[:40]!r}"].append(name)
        return TypedVf(address=name, current=None)
    found = TypedVf(
        address=name,
        current=str(int(text)),
        creatable=_read_creatable(host, name, faults),
    )
    if found.is_free:
        return found
    instance = _read_number(host, name, _INSTANCE, faults)
    return dataclasses.replace(
        found,
        start=_read_number(host, name, _PLACEMENT, faults),
        instance=None if instance is None else str(instance),
    )


def _unreadable(name: str, error: errors.UnreadableError) -> str:
    code = errno.errorcode.get(error.number, str(error.number))
    if error.number == errno.EINVAL:
        return (
            f"{name} can't be read ({code}): NVIDIA's driver failed; see"
            " the kernel's log for NVRM messages"
        )
    return f"{name} can't be read ({code})"


def _read_creatable(
    host: host_reader.HostReader, name: str, faults: Problems
) -> Mapping[str, str] | None:
    try:
        text = host.attribute(name, _CREATABLE)
    except errors.UnreadableError as error:
        faults[_unreadable(_CREATABLE, error)].append(name)
        return None
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            found[str(int(match[1]))] = mdev_names.strip_brand(match[2])
        elif line.strip() and not _HEADER.fullmatch(line):
            faults[
                f"{_CREATABLE} has a line that is no type: {line[:40]!r}"
            ].append(name)
    return found


def _read_number(
    host: host_reader.HostReader, name: str, attribute: str, faults: Problems
) -> int | None:
    """Return a number of the vGPU, None where there is none to be had."""
    try:
        text = host.attribute(name, attribute).strip()
    except errors.UnreadableError as error:
        if error.number not in _NOTHING_YET:
            faults[_unreadable(attribute, error)].append(name)
        return None
    if text.isdecimal():
        return int(text) if int(text) != _NO_NUMBER else None
    if text and text != "-1":
        faults[f"{attribute} is no number: {text[:40]!r}"].append(name)
    return None
