# SPDX-License-Identifier: Apache-2.0
"""Reader of PCI functions and mediated devices.

Attributes are those of Documentation/ABI/testing: sysfs-bus-pci and
sysfs-bus-vfio-mdev. A reader is used by one thread.
"""

import contextlib
import copy
import dataclasses
import errno
import itertools
import operator
import os
import re
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar

from nova_accel import errors, model
from nova_accel.host import bounded_calls, cards, nvml_gpus
from nova_accel.host.sysfs import attributes, fs
from nova_accel.host.sysfs.attributes import Mdev, MdevParent, MdevType
from nova_accel.model import pci

__all__ = ["HostReader", "Mdev", "MdevParent", "MdevType"]

FUNCTIONS = "/sys/bus/pci/devices"
# NUMA nodes.
NODES = "/sys/devices/system/node"
PARENTS = "/sys/class/mdev_bus"
_ACCELERATORS = "/sys/class/accel"
_MDEVS = "/sys/bus/mdev/devices"
_MODULES = "/sys/module"
_INTERFACES = "/sys/class/net"
# Value of every 16-bit read of a function that is gone from its bus.
_GONE = 0xFFFF
# Functions of one PCI domain: 8 bits of bus, 5 of slot, 3 of function. No host
# has as many in all its domains; a capture could have any number.
_MAX_FUNCTIONS = 1 << 16
_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,3})\b")
_HEXADECIMAL = re.compile(r"0x[0-9a-f]{1,8}")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_][\w.\-]*(?:/[A-Za-z0-9_][\w.\-]*)*")


T = TypeVar("T")


class _TypeTexts(TypedDict):
    """Fields of an MdevType that are equal for all VFs of a card."""

    label: str | None
    description: str
    device_api: str


@dataclasses.dataclass(slots=True, kw_only=True)
class _HostResults:
    """Results of the readings of a host; None if there was none yet.

    ``mdevs`` are by name of the parent, ``cards`` are the names of a card by
    each of them, ``problems`` by name of the device, ``type_texts`` by
    address of the card and id of the type, ``values`` by the function that
    has computed them.
    """

    functions: dict[str, pci.PciFunction] | None = None
    parents: dict[str, MdevParent] | None = None
    mdevs: dict[str, tuple[Mdev, ...]] | None = None
    cards: Mapping[str, tuple[str, ...]] | None = None
    unknown: set[str] = dataclasses.field(default_factory=set)
    problems: dict[str, dict[model.Problem, None]] = dataclasses.field(
        default_factory=dict
    )
    type_texts: dict[tuple[str, str], _TypeTexts] = dataclasses.field(
        default_factory=dict
    )
    values: dict[Any, Any] = dataclasses.field(default_factory=dict)


class HostReader:
    """Reader of one host; each file is read at most once.

    A value that can't be read is listed in ``problems()``, and the reader
    continues. Use a new reader for each pass.

    Drivers get the reader of one card, see ``cards``: it lists functions,
    mdev parents and mdevs of this card only. All other methods read the
    whole host.

    :param root: the directory that holds ``sys``: ``/``, or that of a
        captured or simulated host.
    :param source: files to read instead, such as those of an archive.
    :param files: files of an earlier reader, with what it has read.
    :param gpus: NVML's answers by PCI address; empty if it was not called.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        *,
        source: fs.FileSource | None = None,
        files: fs.Files | None = None,
        gpus: Mapping[str, nvml_gpus.NvmlGpu] = types.MappingProxyType({}),
    ) -> None:
        self.files = files or fs.Files(source or fs.DiskSource(root))
        self.gpus = gpus
        self._results = _HostResults()
        #: Names of the card's functions and mdev parents; None for the host.
        self._scope: tuple[str, ...] | None = None

    def with_gpus(self, gpus: Mapping[str, nvml_gpus.NvmlGpu]) -> "HostReader":
        """Return a reader with these GPUs that shares this one's files."""
        reader = copy.copy(self)
        reader.gpus = gpus
        return reader

    def cards(self) -> tuple["HostReader", ...]:
        """Return a reader of each card; see ``cards.group``.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        scopes = dict.fromkeys(self._list_cards().values())
        return tuple(map(self._limited_to, scopes))

    def card_of(self, name: str) -> "HostReader":
        """Return the reader of the card of a function or mdev parent.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return self._limited_to(self._list_cards().get(name, (name,)))

    @property
    def card_names(self) -> tuple[str, ...]:
        """Return the functions and mdev parents of the card, () for a host.

        Also those that can't be read.
        """
        return self._scope or ()

    def functions(self) -> tuple[pci.PciFunction, ...]:
        """Return the PCI functions of the card, or of the host, by address.

        A function whose ids or class can't be read is left out.

        :raises UnreadableError: the bus itself can't be listed.
        """
        return self._select(self._by_address())

    def all_functions(self) -> tuple[pci.PciFunction, ...]:
        """Return every PCI function of the host, by address.

        :raises UnreadableError: the bus itself can't be listed.
        """
        return tuple(self._by_address().values())

    def once(self, compute: Callable[["HostReader"], T]) -> T:
        """Return a value of the whole host, computed once.

        It stays as it is when a card is read again later.

        :param compute: takes the reader of the host.
        """
        values = self._results.values
        if compute not in values:
            values[compute] = compute(self._limited_to(None))
        value: T = values[compute]
        return value

    def function(self, address: str) -> pci.PciFunction | None:
        """Return the function at an address, or None.

        :raises UnreadableError: the bus itself can't be listed.
        """
        return self._by_address().get(address)

    def mdev_parents(self) -> tuple[MdevParent, ...]:
        """Return the mdev parents of the card, or of the host, by name.

        :raises UnreadableError: the class of parents can't be listed.
        """
        return self._select(self._parents_by_name())

    def mdev_parent(self, name: str) -> MdevParent | None:
        """Return the device of a name that can make mdevs, or None.

        :raises UnreadableError: the class of parents can't be listed.
        """
        return self._parents_by_name().get(name)

    def mdevs(self) -> tuple[Mdev, ...]:
        """Return the mdevs of the card, or of the host, sorted by uuid.

        :raises UnreadableError: the bus of mdevs can't be listed.
        """
        mdevs = itertools.chain(*self._select(self._mdevs_by_parent()))
        return tuple(sorted(mdevs, key=operator.attrgetter("uuid")))

    def accelerators(self) -> tuple[str, ...]:
        """Return the devices that the kernel lists as accelerators.

        Each is named by the PCI address of its function, or by its name on
        another bus, as the NPU of an ARM processor. Linux has the class
        since 6.2 (Documentation/accel).
        """
        parents: dict[str, None] = {}
        try:
            names = self.files.names(_ACCELERATORS)
            paths = [self.files.resolve(f"{_ACCELERATORS}/{n}") for n in names]
        except errors.UnreadableError:
            return ()
        for path in paths:
            # .../0000:c5:00.1/accel/accel0; a device of the auxiliary bus
            # may be between the function and this directory.
            above = [part for part in path.split("/")[:-1] if part != "accel"]
            functions = [part for part in above if pci.is_address(part)]
            parents[functions[-1] if functions else above[-1]] = None
        return tuple(parents)

    def attribute(self, address: str, name: str) -> str:
        """Return a function's attribute, without the final newline.

        :param name: ``revision`` or ``nvidia/current_vgpu_type``.
        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or name have another form.
        """
        return self.files.text(self._below(address, name)).rstrip("\n")

    def module_version(self, name: str) -> str:
        """Return a loaded kernel module's version, empty if unknown.

        :param name: a plain name such as ``nvidia``.
        """
        try:
            return self.files.text(f"{_MODULES}/{name}/version").strip()
        except errors.UnreadableError:
            return ""  # not loaded, built in, or without a version

    def kernel_release(self) -> str:
        """Return what ``uname -r`` prints on this host, empty if unknown."""
        try:
            return self.files.text(fs.KERNEL_RELEASE).strip()
        except errors.UnreadableError:
            return ""

    def kernel_version(self) -> tuple[int, int]:
        """Return the kernel's version, as (6, 6), or (0, 0) if unknown."""
        match = _RELEASE.match(self.kernel_release())
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def names(self, address: str, place: str = "") -> tuple[str, ...]:
        """Return the names in a function's directory, sorted.

        :param place: a directory below it, such as ``drm/card1``.
        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or place have another form.
        """
        if place:
            return self.files.names(self._below(address, place))
        return self.files.names(f"{FUNCTIONS}/{pci.parse_address(address)}")

    def target(self, address: str, name: str) -> str:
        """Return the last part of the target of a function's link.

        :raises UnreadableError: with the errno of the failed read.
        :raises MalformedError: address or name have another form.
        """
        return self.files.link(self._below(address, name))

    def interface_address(self, name: str) -> str:
        """Return the PCI address of a network interface, empty without one.

        :raises UnreadableError: with the errno of the failed read.
        """
        path = f"{_INTERFACES}/{name}/device"
        return self.files.link(path) if self.files.exists(path) else ""

    def _below(self, address: str, place: str) -> str:
        if not _ATTRIBUTE.fullmatch(place):
            raise errors.MalformedError(
                "attribute name", place, "a path below the function"
            )
        return f"{FUNCTIONS}/{pci.parse_address(address)}/{place}"

    def problems(self) -> tuple[model.Problem, ...]:
        """Return the values that could not be read so far, with causes.

        Those of the card, or of the host.
        """
        return tuple(itertools.chain(*self._select(self._results.problems)))

    def unknown(self) -> frozenset[str]:
        """Return the addresses of functions with unreadable ids or class."""
        return frozenset(self._results.unknown)

    def late(self) -> Mapping[str, str]:
        """Return the devices that gave no answer in time.

        Each has the path of the read that hangs. A device is a PCI
        function; of a place without one, each component may be the name of
        an mdev parent.
        """
        late: dict[str, str] = {}
        for place, path in self.files.late().items():
            parts = place.split("/")[::-1]
            functions = [*filter(pci.is_address, parts)]
            late |= dict.fromkeys(functions[:1] or parts, path)
        return late

    def _note(self, address: str, reason: str, type_id: str = "") -> None:
        problem = model.Problem(
            where=f"{address} {type_id}" if type_id else address,
            reason=reason,
            address=address,
        )
        self._results.problems.setdefault(address, {})[problem] = None

    def _limited_to(self, scope: tuple[str, ...] | None) -> "HostReader":
        """Return a reader of a card, or of the host, with these results."""
        reader = copy.copy(self)
        reader._scope = scope
        return reader

    def _select(self, results: Mapping[str, T]) -> tuple[T, ...]:
        """Return the results of the card, or all."""
        if self._scope is None:
            return tuple(results.values())
        return tuple([results[n] for n in self._scope if n in results])

    def _list_cards(self) -> Mapping[str, tuple[str, ...]]:
        """Return the names of each card by each of them."""
        results = self._results
        if results.cards is None:
            functions = self._by_address().values()
            physfns: dict[str, str | None] = {}
            with contextlib.suppress(errors.UnreadableError):
                parents = self._parents_by_name().values()
                physfns = {parent.name: parent.physfn for parent in parents}
            results.cards = cards.group(functions, physfns, results.unknown)
        return results.cards

    def _listed(self, path: str) -> tuple[str, ...]:
        """Return a directory's names; none if it does not exist.

        :raises UnreadableError: it can't be listed, or no sysfs is mounted
            (as in some containers).
        """
        try:
            return self.files.names(path)
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT and self.files.is_mounted():
                return ()
            raise

    # -- PCI functions ----------------------------------------------------

    def _by_address(self) -> dict[str, pci.PciFunction]:
        results = self._results
        if results.functions is None:
            results.functions = bounded_calls.run(self._read_functions)
        return results.functions

    def _read_functions(self) -> dict[str, pci.PciFunction]:
        functions: dict[str, pci.PciFunction] = {}
        present = frozenset(self._listed(FUNCTIONS))
        if len(present) > _MAX_FUNCTIONS:
            raise errors.UnreadableError(FUNCTIONS, errno.EOVERFLOW)
        for name in sorted(present):
            if not pci.is_address(name):
                self._note(name, "is no PCI address; left out")
                continue
            function = self._read_function(name, present)
            if function is None:
                self._results.unknown.add(name)
            else:
                functions[name] = function
        _complete_physfns(functions)
        return dict(
            sorted(functions.items(), key=lambda item: item[1].address)
        )

    def _read_function(
        self, name: str, present: frozenset[str]
    ) -> pci.PciFunction | None:
        directory = f"{FUNCTIONS}/{name}"
        try:
            entries = frozenset(self.files.names(directory))
            vendor = self._hexadecimal(directory, "vendor")
            product = self._hexadecimal(directory, "device")
            class_code = self._hexadecimal(directory, "class", digits=6)
        except (errors.UnreadableError, errors.MalformedError) as error:
            reason = f"its ids or class can't be read, left out: {error}"
            if self.files.is_gone(directory):
                reason = "has left the bus; reseat the card, or rescan the bus"
            self._note(name, reason)
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
        group, members = self._read_iommu_group(facts)
        children = tuple(facts.virtual_functions(present))
        return pci.PciFunction(
            address=pci.parse_address(name),
            vendor=f"{vendor:04x}",
            product=f"{product:04x}",
            class_code=class_code,
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
            is_accel="accel" in entries,
        )

    def _hexadecimal(self, directory: str, name: str, digits: int = 4) -> int:
        text = self.files.text(f"{directory}/{name}").strip()
        if not (_HEXADECIMAL.fullmatch(text) and len(text) == digits + 2):
            raise errors.MalformedError(
                name, text[:40], f"0x and {digits} digits"
            )
        return int(text, 16)

    def _read_iommu_group(
        self, facts: attributes.DeviceAttributes
    ) -> tuple[int | None, tuple[pci.PciAddress, ...]]:
        """Return an IOMMU group's number and members.

        The members are empty if they can't be read.
        """
        number = facts.link("iommu_group")
        if number is None or not number.isdecimal():
            return None, ()
        if self._is_noiommu_group(facts.directory):
            return None, ()
        try:
            names = self.files.names(f"{facts.directory}/iommu_group/devices")
        except errors.UnreadableError as error:
            facts.note(f"its IOMMU group's members can't be read: {error}")
            return int(number), ()
        members = (n for n in names if pci.is_address(n))
        return int(number), tuple(map(pci.parse_address, members))

    def _is_noiommu_group(self, directory: str) -> bool:
        """Return whether VFIO made the group on a host without IOMMU.

        enable_unsafe_noiommu_mode does so (drivers/vfio/group.c,
        vfio_noiommu_group_alloc). A guest can't use such a group.
        """
        try:
            name = self.files.text(f"{directory}/iommu_group/name")
        except errors.UnreadableError:
            return False  # groups have a name on some architectures only
        return name.strip() == "vfio-noiommu"

    # -- mediated devices -------------------------------------------------

    def _parents_by_name(self) -> dict[str, MdevParent]:
        results = self._results
        if results.parents is None:
            results.parents = bounded_calls.run(self._read_parents)
        return results.parents

    def _read_parents(self) -> dict[str, MdevParent]:
        self._by_address()
        parents = map(self._read_parent, self._listed(PARENTS))
        return {p.name: p for p in parents if p is not None}

    def _read_parent(self, name: str) -> MdevParent | None:
        """Return an mdev parent, None if its types can't be listed."""
        directory = f"{PARENTS}/{name}"
        try:
            type_ids = self.files.names(f"{directory}/mdev_supported_types")
            entries = frozenset(self.files.names(directory))
        except errors.UnreadableError as error:
            self._results.unknown.add(name)
            self._note(name, f"its mdev types can't be listed: {error}")
            return None
        function = self.function(name)
        facts = attributes.DeviceAttributes(
            self.files, directory, entries, self._note
        )
        physfn = function.physfn if function else facts.address("physfn")
        card = str(physfn or name)
        return MdevParent(
            name=name,
            function=function,
            driver=function.driver if function else facts.driver(),
            physfn=str(physfn) if physfn else None,
            types=tuple(self._read_types(name, directory, type_ids, card)),
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
            mdev_type = MdevType(
                **self._read_texts(facts, (card, type_id)),
                type_id=type_id,
                available=facts.available(),
            )
            if facts.missing and self.files.is_gone(place):
                self._note(
                    parent,
                    "vanished while being read; left out until the next look",
                    type_id,
                )
                continue
            for reason in facts.reasons:
                self._note(parent, reason, type_id)
            yield mdev_type

    def _read_texts(
        self, facts: attributes.MdevTypeAttributes, key: tuple[str, str]
    ) -> _TypeTexts:
        """Return the texts of a type, read once for all VFs of a card.

        For 32 VFs of 24 types that is 72 files instead of 2304.

        :param key: address of the card, and id of the type.
        """
        type_texts = self._results.type_texts
        if key in type_texts:
            return type_texts[key]
        texts = _TypeTexts(
            label=facts.text("name"),
            description=facts.text("description") or "",
            device_api=facts.text("device_api") or "",
        )
        if texts["label"] and texts["device_api"] and not facts.reasons:
            type_texts[key] = texts
        return texts

    def _mdevs_by_parent(self) -> dict[str, tuple[Mdev, ...]]:
        results = self._results
        if results.mdevs is None:
            results.mdevs = bounded_calls.run(self._group_mdevs)
        return results.mdevs

    def _group_mdevs(self) -> dict[str, tuple[Mdev, ...]]:
        groups: dict[str, tuple[Mdev, ...]] = {}
        for mdev in self._read_mdevs():
            groups[mdev.parent] = (*groups.get(mdev.parent, ()), mdev)
        return groups

    def _read_mdevs(self) -> Iterator[Mdev]:
        for name in self._listed(_MDEVS):
            place = f"{_MDEVS}/{name}"
            try:
                uuid.UUID(name)
                parent = self.files.resolve(place).split("/")[-2]
            except (ValueError, errors.UnreadableError) as error:
                self._note(name, f"is left out as an mdev: {error}")
                continue
            yield self._read_mdev(place, parent)

    def _read_mdev(self, place: str, parent: str) -> Mdev:
        name = place.rpartition("/")[2]
        try:
            type_id = self.files.link(f"{place}/mdev_type")
        except errors.UnreadableError as error:
            self._note(name, f"its mdev type can't be read: {error}")
            type_id = ""
        return Mdev(uuid=name.lower(), parent=parent, type_id=type_id)


def _complete_physfns(functions: dict[str, pci.PciFunction]) -> None:
    """Set the PF of each VF whose physfn link is missing or dangling.

    While VFs are enabled, a VF is on the bus before its physfn link is
    made (drivers/pci/iov.c, pci_iov_add_virtfn); the PF's virtfn link
    exists already.
    """
    for parent in list(functions.values()):
        for address in parent.virtual_functions:
            child = functions.get(str(address))
            if child is not None and str(child.physfn) not in functions:
                functions[str(address)] = dataclasses.replace(
                    child, physfn=parent.address
                )
