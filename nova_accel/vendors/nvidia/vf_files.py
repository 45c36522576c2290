# SPDX-License-Identifier: Apache-2.0
"""Attributes of NVIDIA's VFs in sysfs.

The files are in the directory ``nvidia`` of each VF: its type
(``current_vgpu_type``, 0 for none), the types it could have now
(``creatable_vgpu_types``), and the placement and GPU instance of its vGPU.
The format is that of NVIDIA's VFIO driver (nv-vfio-pci).
"""

import collections
import dataclasses
import errno
import re
from collections.abc import Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.host.sysfs import attributes, host_reader, modules
from nova_accel.model import pci

_CURRENT = "nvidia/current_vgpu_type"
_CREATABLE = "nvidia/creatable_vgpu_types"
_PLACEMENT = "nvidia/placement_id"
_INSTANCE = "nvidia/gpu_instance_id"
# "1155  : NVIDIA L40S-24Q", below the header "ID    : vGPU Name"
_LINE = re.compile(r"([0-9]{1,10})\s*:\s*(\S.*)")
_HEADER = re.compile(r"\s*ID\s*:.*", re.IGNORECASE)
# Errors of reading a placement or instance that is not set; drivers before
# 580 have no such files.
_NOTHING_YET = (errno.ENXIO, errno.ENOENT)
# The kernel prints -1 as u32 for "none".
_NO_NUMBER = 0xFFFFFFFF

_NO_GROUP = "in no IOMMU group, so no guest can have a vGPU of it; "


_NO_TYPE_FILE = (
    f"without {_CURRENT}, unlike the card's other VFs; enable the card's VFs"
    " anew"
)
# The driver of VFs that have a type.
_DRIVER = "nvidia"

Problems = dict[str, list[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypedVf:
    """One VF; ``current`` and ``creatable`` are None if unreadable.

    ``current`` is the decimal type id, ``0`` for none. ``creatable`` are
    the names (without brand) of the types it could have now, by id.
    ``has_group`` is False if the VF is in no IOMMU group.
    """

    address: str
    current: str | None
    creatable: Mapping[str, str] | None = None
    start: int | None = None
    instance: str | None = None
    has_group: bool = True

    @property
    def is_free(self) -> bool:
        """Return whether the VF is known to have no vGPU."""
        return self.current == "0"

    @property
    def available_types(self) -> frozenset[str]:
        """Return the names of the types that the VF can get now."""
        if not (self.is_free and self.has_group):
            return frozenset()
        return frozenset((self.creatable or {}).values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TypedVfCard:
    """A card whose VFs have, or should have, a vGPU type.

    ``slots`` are the VFs that have or may get a vGPU, ``vfs`` those of them
    with type attributes.
    """

    function: pci.PciFunction
    slots: tuple[str, ...]
    vfs: tuple[TypedVf, ...]
    problems: tuple[model.Problem, ...]

    @property
    def address(self) -> str:
        return str(self.function.address)

    def list_creatable(self) -> Mapping[str, str]:
        """Return the names, by id, of all types that any VF lists."""
        type_names: dict[str, str] = {}
        for vf in self.vfs:
            type_names |= vf.creatable or {}
        return type_names


def read_card(
    host: host_reader.HostReader, function: pci.PciFunction
) -> TypedVfCard:
    """Return a card with its VFs, and problems of unreadable VFs."""
    faults: Problems = collections.defaultdict(list)
    slots = []
    vfs = []
    untyped = []
    for place in function.virtual_functions:
        name = str(place)
        vf = host.function(name)
        if vf is not None and vf.is_vfio_bound:
            continue
        typed_vf = _read_vf(host, name, faults)
        if typed_vf is None and vf is not None:
            if vf.driver == _DRIVER:
                untyped.append(name)
            continue
        slots.append(name)
        if typed_vf is None:
            continue
        if vf is not None and vf.iommu_group is None:
            typed_vf = dataclasses.replace(typed_vf, has_group=False)
            hint = modules.explain_iommu(host.files)
            faults[f"{_NO_GROUP}{hint}"].append(name)
        vfs.append(typed_vf)
    if vfs and untyped:
        faults[_NO_TYPE_FILE] = untyped
    return TypedVfCard(
        function=function,
        slots=tuple(slots),
        vfs=tuple(vfs),
        problems=tuple(_merge_problems(str(function.address), faults)),
    )


def has_type(host: host_reader.HostReader, function: pci.PciFunction) -> bool:
    """Return whether a function has a vGPU type; only VFs have one."""
    try:
        host.attribute(str(function.address), _CURRENT)
    except errors.UnreadableError as error:
        return error.number != errno.ENOENT
    return True


def _merge_problems(address: str, faults: Problems) -> Iterator[model.Problem]:
    """Yield one problem for all VFs with the same reason."""
    for reason, addresses in faults.items():
        where = addresses[0] if len(addresses) == 1 else address
        prefix = ""
        if len(addresses) > 1:
            prefix = f"{len(addresses)} of its VFs ({addresses[0]} and on): "
        yield model.Problem.of_device(where, f"{prefix}{reason}")


def _read_vf(
    host: host_reader.HostReader, name: str, faults: Problems
) -> TypedVf | None:
    """Return a VF, None if it has no type attribute."""
    try:
        text = host.attribute(name, _CURRENT).strip()
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return None
        faults[_unreadable(_CURRENT, error)].append(name)
        return TypedVf(address=name, current=None)
    current = attributes.parse_number(text)
    if current is None:
        faults[f"{_CURRENT} is no number: {text[:40]!r}"].append(name)
        return TypedVf(address=name, current=None)
    vf = TypedVf(
        address=name,
        current=str(current),
        creatable=_read_creatable(host, name, faults),
    )
    if vf.is_free:
        return vf
    instance = _read_number(host, name, _INSTANCE, faults)
    return dataclasses.replace(
        vf,
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
    type_names = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            type_names[str(int(match[1]))] = mdev_names.strip_brand(match[2])
        elif line.strip() and not _HEADER.fullmatch(line):
            faults[
                f"{_CREATABLE} has a line that is no type: {line[:40]!r}"
            ].append(name)
    return type_names


def _read_number(
    host: host_reader.HostReader, name: str, attribute: str, faults: Problems
) -> int | None:
    """Return a number of the vGPU, None if it is not set or unreadable."""
    try:
        text = host.attribute(name, attribute).strip()
    except errors.UnreadableError as error:
        if error.number not in _NOTHING_YET:
            faults[_unreadable(attribute, error)].append(name)
        return None
    number = attributes.parse_number(text)
    if number is not None:
        return number if number != _NO_NUMBER else None
    if text and text != "-1":
        faults[f"{attribute} is no number: {text[:40]!r}"].append(name)
    return None
