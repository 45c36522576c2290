# SPDX-License-Identifier: Apache-2.0
"""Reader of PCI functions and mediated devices."""

import contextlib
import dataclasses
import errno
import os
import re
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

from nova_accel import errors, model
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import attributes, fs
from nova_accel.host.sysfs.mdev_types import Mdev, MdevParent, MdevType
from nova_accel.model import pci

__all__ = ["HostReader", "Mdev", "MdevParent", "MdevType", "subject"]

# Documentation/ABI/testing: sysfs-bus-pci, sysfs-bus-vfio-mdev.
_FUNCTIONS = "/sys/bus/pci/devices"
_PARENTS = "/sys/class/mdev_bus"
_MDEVS = "/sys/bus/mdev/devices"
_MODULES = "/sys/module"
# What every 16-bit read gives once a function is gone from its bus.
_GONE = 0xFFFF
_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,3})\b")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_][\w.\-]*(?:/[A-Za-z0-9_][\w.\-]*)*")


class _TypeText(TypedDict):
    """What describes a type, as MdevType has it."""

    label: str | None
    description: str
    device_api: str


class HostReader:
    """One look at a host: each file is read at most once.

    What can't be read is kept in ``problems()`` while the rest goes on.
    Make a new reader for the next look.

    :param root: the directory that holds ``sys``: ``/``, or a captured or
        simulated host's.
    :param source: where to read instead, for a host in an archive.
    :param gpus: what NVML says, by PCI address; nothing where it is not
        asked.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        *,
        source: fs.FileSource | None = None,
        gpus: Mapping[str, gpu_reader.NvmlGpu] = types.MappingProxyType({}),
    ) -> None:
        self.files = fs.Files(source or fs.DiskSource(root))
        self.gpus = gpus
        self._kept: Mapping[str, MdevParent] = types.MappingProxyType({})
        self._problems: dict[model.Problem, None] = {}
        self._words: dict[tuple[str, str], _TypeText] = {}
        self._unknown: set[str] = set()
        self._functions: dict[str, pci.PciFunction] | None = None
        self._parents: tuple[MdevParent, ...] | None = None
        self._mdevs: tuple[Mdev, ...] | None = None

    def functions(self) -> tuple[pci.PciFunction, ...]:
        """Return every PCI function whose ids can be read, by address.

        :raises UnreadableError: the bus itself can't be listed.
        """
        return tuple(self._by_address().values())

    def function(self, address: str) -> pci.PciFunction | None:
        """Return the function at an address, or None.

        :raises UnreadableError: the bus itself can't be listed.
        """
        return self._by_address().get(address)

    def mdev_parents(self) -> tuple[MdevParent, ...]:
        """Return what can make mediated devices, in the order of names.

        :raises UnreadableError: the class of parents can't be listed.
        """
        if self._parents is None:
            self._by_address()
            self._parents = tuple(self._read_parents())
        return self._parents

    def mdevs(self) -> tuple[Mdev, ...]:
        """Return the mediated devices that exist, in the order of uuids.

        :raises UnreadableError: the bus of mdevs can't be listed.
        """
        if self._mdevs is None:
            self._mdevs = tuple(self._read_mdevs())
        return self._mdevs

    def attribute(self, address: str, name: str) -> str:
        """Return a function's attribute, without the final newline.

        :param name: as ``revision``, or ``nvidia/current_vgpu_type``.
        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or name can't be such.
        """
        return self.files.text(self._below(address, name)).rstrip("\n")

    def module_version(self, name: str) -> str:
        """Return a loaded kernel module's version, empty if unknown.

        :param name: as ``nvidia``; a plain name.
        """
        try:
            return self.files.text(f"{_MODULES}/{name}/version").strip()
        except errors.UnreadableError:
            return ""  # not loaded, built in, or without a version

    def kernel_version(self) -> tuple[int, int]:
        """Return the kernel's version, as (6, 6), or (0, 0) if unknown."""
        try:
            release = self.files.text(fs.KERNEL_RELEASE)
        except errors.UnreadableError:
            return (0, 0)
        found = _RELEASE.match(release)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def names(self, address: str, place: str = "") -> tuple[str, ...]:
        """Return what is in a function's directory, sorted.

        :param place: a directory below it, as ``drm/card1``.
        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or place can't be such.
        """
        if place:
            return self.files.names(self._below(address, place))
        return self.files.names(f"{_FUNCTIONS}/{pci.parse_address(address)}")

    def target(self, address: str, name: str) -> str:
        """Return the last part of where a function's link points.

        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or name can't be such.
        """
        return self.files.link(self._below(address, name))

    def _below(self, address: str, place: str) -> str:
        if not _ATTRIBUTE.fullmatch(place):
            raise errors.MalformedError(
                "attribute name", place, "a path below the function"
            )
        return f"{_FUNCTIONS}/{pci.parse_address(address)}/{place}"

    def look_again(
        self,
        names: Iterable[str],
        gpus: Mapping[str, gpu_reader.NvmlGpu] = types.MappingProxyType({}),
    ) -> "HostReader":
        """Return a reader that remembers all but some devices.

        Those, and which mdevs there are, are read anew; of the others
        nothing is. This reader stays as it is.

        :param names: PCI addresses or mdev parents' names.
        :param gpus: what NVML says now.
        """
        stale = frozenset(names)
        places = [_MDEVS]
        for top in (_FUNCTIONS, _PARENTS):
            for name in stale:
                with contextlib.suppress(errors.UnreadableError):
                    places.append(self.files.resolve(f"{top}/{name}"))
        again = HostReader(source=self.files.source, gpus=gpus)
        again.files = self.files.without(tuple(places))
        again._kept = {
            parent.name: parent
            for parent in self._parents or ()
            if parent.name not in stale
        }
        again._problems = {
            problem: None
            for problem in self._problems
            if subject(problem) in again._kept
        }
        return again

    def problems(self) -> tuple[model.Problem, ...]:
        """Return what could not be read so far, and why."""
        return tuple(self._problems)

    def unknown(self) -> frozenset[str]:
        """Return what exists but can't be told: addresses without ids."""
        return frozenset(self._unknown)

    def _note(self, where: str, reason: str) -> None:
        self._problems[model.Problem(where=where, reason=reason)] = None

    def _listed(self, path: str) -> tuple[str, ...]:
        """Return a directory's names; nothing if there is none.

        :raises UnreadableError: it can't be listed; also where no sysfs is
            mounted, as in some containers.
        """
        try:
            return self.files.names(path)
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT and self.files.is_mounted():
                return ()
            raise

    # -- PCI functions ----------------------------------------------------

    def _by_address(self) -> dict[str, pci.PciFunction]:
        if self._functions is None:
            found: dict[str, pci.PciFunction] = {}
            present = frozenset(self._listed(_FUNCTIONS))
            for name in sorted(present):
                if not pci.is_address(name):
                    self._note(name, "is no PCI address; left out")
                    continue
                function = self._read_function(name, present)
                if function is None:
                    self._unknown.add(name)
                else:
                    found[name] = function
            _adopt(found)
            self._functions = dict(
                sorted(found.items(), key=lambda item: item[1].address)
            )
        return self._functions

    def _read_function(
        self, name: str, present: frozenset[str]
    ) -> pci.PciFunction | None:
        directory = f"{_FUNCTIONS}/{name}"
        try:
            entries = frozenset(self.files.names(directory))
            vendor = self._hexadecimal(directory, "vendor")
            product = self._hexadecimal(directory, "device")
        except (errors.UnreadableError, errors.MalformedError) as error:
            self._note(name, f"its ids can't be read, left out: {error}")
            return None
        if vendor == _GONE:
            self._note(
                name,
                "is gone from the bus: its vendor reads 0xffff; rescan the"
                " bus or reseat the card",
            )
            return None
        facts = attributes.DeviceAttributes(
            self.files, directory, entries, self._note
        )
        group, members = self._read_group(facts)
        children = tuple(facts.virtual_functions(present))
        return pci.PciFunction(
            address=pci.parse_address(name),
            vendor=f"{vendor:04x}",
            product=f"{product:04x}",
            class_code=facts.number("class", 16),
            subsystem_vendor=facts.identity("subsystem_vendor"),
            subsystem_product=facts.identity("subsystem_device"),
            driver=facts.driver(),
            numa_node=facts.numa_node(),
            iommu_group=group,
            group_members=members,
            physfn=facts.address("physfn"),
            total_vfs=facts.number("sriov_totalvfs"),
            num_vfs=facts.number("sriov_numvfs") or len(children),
            virtual_functions=children,
            boot_vga=facts.is_boot_vga(),
        )

    def _hexadecimal(self, directory: str, name: str) -> int:
        text = self.files.text(f"{directory}/{name}").strip()
        if not re.fullmatch(r"0x[0-9a-f]{4}", text):
            raise errors.MalformedError(name, text[:40], "0x and four digits")
        return int(text, 16)

    def _read_group(
        self, facts: attributes.DeviceAttributes
    ) -> tuple[int | None, tuple[pci.PciAddress, ...]]:
        """Return an IOMMU group's number and members.

        No member at all stands for a group whose members can't be read.
        """
        number = facts.link("iommu_group")
        if number is None or not number.isdecimal():
            return None, ()
        if self._is_made_up(facts.directory):
            return None, ()
        try:
            names = self.files.names(f"{facts.directory}/iommu_group/devices")
        except errors.UnreadableError as error:
            facts.note(f"its IOMMU group's members can't be read: {error}")
            return int(number), ()
        members = (n for n in names if pci.is_address(n))
        return int(number), tuple(map(pci.parse_address, members))

    def _is_made_up(self, directory: str) -> bool:
        """Return whether VFIO made a group where there is no IOMMU.

        With enable_unsafe_noiommu_mode (drivers/vfio/group.c,
        vfio_noiommu_group_alloc): no guest can have that.
        """
        try:
            name = self.files.text(f"{directory}/iommu_group/name")
        except errors.UnreadableError:
            return False  # groups have a name on some architectures only
        return name.strip() == "vfio-noiommu"

    # -- mediated devices -------------------------------------------------

    def _read_parents(self) -> Iterator[MdevParent]:
        for name in self._listed(_PARENTS):
            if name in self._kept:
                yield self._kept[name]
                continue
            directory = f"{_PARENTS}/{name}"
            try:
                type_ids = self.files.names(
                    f"{directory}/mdev_supported_types"
                )
                entries = frozenset(self.files.names(directory))
            except errors.UnreadableError as error:
                self._unknown.add(name)
                self._note(name, f"its mdev types can't be listed: {error}")
                continue
            function = self.function(name)
            facts = attributes.DeviceAttributes(
                self.files, directory, entries, self._note
            )
            physfn = function.physfn if function else facts.address("physfn")
            yield MdevParent(
                name=name,
                function=function,
                driver=function.driver if function else facts.driver(),
                physfn=str(physfn) if physfn else None,
                types=tuple(
                    self._read_types(
                        name, directory, type_ids, str(physfn or name)
                    )
                ),
            )

    def _read_types(
        self,
        parent: str,
        directory: str,
        type_ids: tuple[str, ...],
        card: str,
    ) -> Iterator[MdevType]:
        for type_id in type_ids:
            place = f"{directory}/mdev_supported_types/{type_id}"
            facts = attributes.MdevTypeAttributes(self.files, place)
            found = MdevType(
                **self._read_words(facts, (card, type_id)),
                type_id=type_id,
                available=facts.available(),
            )
            if facts.missing and self.files.is_gone(place):
                self._note(
                    f"{parent} {type_id}",
                    "vanished while being read; left out until the next look",
                )
                continue
            for reason in facts.reasons:
                self._note(f"{parent} {type_id}", reason)
            yield found

    def _read_words(
        self, facts: attributes.MdevTypeAttributes, key: tuple[str, str]
    ) -> _TypeText:
        """Return what describes a type; the VFs of a card say the same.

        It is read once a card: for 32 VFs of 24 types that is 72 files
        instead of 2304.
        """
        if key in self._words:
            return self._words[key]
        words = _TypeText(
            label=facts.text("name"),
            description=facts.text("description") or "",
            device_api=facts.text("device_api") or "",
        )
        if words["label"] and words["device_api"] and not facts.reasons:
            self._words[key] = words
        return words

    def _read_mdevs(self) -> Iterator[Mdev]:
        for name in self._listed(_MDEVS):
            place = f"{_MDEVS}/{name}"
            try:
                uuid.UUID(name)
                parent = self.files.resolve(place).split("/")[-2]
            except (ValueError, errors.UnreadableError) as error:
                self._note(name, f"is left out as an mdev: {error}")
                continue
            try:
                type_id = self.files.link(f"{place}/mdev_type")
            except errors.UnreadableError as error:
                self._note(name, f"its mdev type can't be read: {error}")
                type_id = ""
            yield Mdev(uuid=name.lower(), parent=parent, type_id=type_id)


def subject(problem: model.Problem) -> str:
    """Return the device or function that a problem is of."""
    return problem.where.partition(" ")[0]


def _adopt(functions: dict[str, pci.PciFunction]) -> None:
    """Give each VF the PF that has a link to it, if its own leads nowhere.

    While VFs are enabled, a VF stands on the bus before its physfn link
    does (drivers/pci/iov.c, pci_iov_add_virtfn).
    """
    for parent in list(functions.values()):
        for address in parent.virtual_functions:
            child = functions.get(str(address))
            if child is not None and str(child.physfn) not in functions:
                functions[str(address)] = dataclasses.replace(
                    child, physfn=parent.address
                )
