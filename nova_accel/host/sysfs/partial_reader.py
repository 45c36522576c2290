# SPDX-License-Identifier: Apache-2.0
"""Reader of some devices of a host that was read before.

It costs what these devices cost, however many others the host has.
"""

import dataclasses
import errno
import re
import types
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import host_reader
from nova_accel.host.sysfs.host_reader import FUNCTIONS, PARENTS, T
from nova_accel.model import pci

_NO_GPUS: Mapping[str, gpu_reader.NvmlGpu] = types.MappingProxyType({})
_FUNCTION_NUMBERS = range(8)
# NVIDIA's VFs that have a type each; see vendors/nvidia/vf_files.
_CURRENT = "nvidia/current_vgpu_type"
_CREATABLE = "nvidia/creatable_vgpu_types"
_NO_TYPE = "0"
# Directory of the types of an mdev parent.
MDEV_TYPES = "mdev_supported_types"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class PartialReader(host_reader.HostReader):
    """Reader that lists some functions, and reads some of them again.

    Everything else is as the earlier reader has it. A partition on one VF
    changes what the free VFs of its card can hold: those for which that
    read the same before are taken to still do, and one of them is read.

    :param earlier: the reader of a full reading, or a partial reader.
    :param scope: names of the functions and mdev parents to list. The
        functions of their PCI slots, their VFs and the members of their
        IOMMU groups are added.
    :param stale: names of functions and parents that are read again, or
        directories in them (``0000:3b:00.4/nvidia``). With
        ``0000:3b:00.4/mdev_supported_types`` the mdevs of a VF are read
        again, and how many more its card can create of the types in use.
        If it has lost an mdev or has other types, all of it is read again.
    :raises UnreadableError: the earlier reader could not list the host.
    """

    is_partial = True

    def __init__(
        self,
        earlier: host_reader.HostReader,
        scope: Iterable[str],
        stale: Iterable[str],
        gpus: Mapping[str, gpu_reader.NvmlGpu] = _NO_GPUS,
    ) -> None:
        super().__init__(files=earlier.files.without(()), gpus=gpus)
        slots, stale = self._split(frozenset(stale))
        mdevs = [
            f"{mdev.parent}/{mdev.uuid}"
            for mdev in earlier.mdevs()
            if mdev.parent in slots
        ]
        self.files = self.files.without(_list_places(self, [*stale, *mdevs]))
        names = frozenset(name for name in stale if "/" not in name)
        #: Functions, mdev parents and mdevs read since the full reading.
        self._newer = _Newer()
        self._whole = earlier
        if isinstance(earlier, PartialReader):
            self._whole, self._newer = earlier._whole, earlier._newer
            self._newer = self._newer.without(names)
        self._unknown = set(earlier.unknown() - names)
        self._scope = dict.fromkeys(_expand(earlier, scope))
        self._problems = {
            problem: None
            for problem in earlier.problems()
            if problem.address in self._scope.keys() - names
        }
        self._type_texts = {
            key: texts
            for key, texts in earlier._type_texts.items()
            if key[0] not in names
        }
        self._read_stale(names)
        self._read_slots(slots)
        if (slots or stale) and self._refresh_capacity(slots, stale):
            for parent in self.mdev_parents():
                if parent.name not in names:
                    again = self._read_parent(parent.name)
                    self._newer.parents[parent.name] = again

    def functions(self) -> tuple[pci.PciFunction, ...]:
        functions = filter(None, map(self.function, self._scope))
        return tuple(sorted(functions, key=lambda f: f.address))

    def all_functions(self) -> tuple[pci.PciFunction, ...]:
        functions = {**self._whole._by_address(), **self._newer.functions}
        return tuple(filter(None, functions.values()))

    def function(self, address: str) -> pci.PciFunction | None:
        if address in self._newer.functions:
            return self._newer.functions[address]
        return self._whole.function(address)

    def retain(self, key: str, value: T) -> T:
        retained: T = self._whole._retained.get(key, value)
        return retained

    def mdev_parents(self) -> tuple[host_reader.MdevParent, ...]:
        return tuple(filter(None, map(self.mdev_parent, sorted(self._scope))))

    def mdevs(self) -> tuple[host_reader.Mdev, ...]:
        newer = self._newer.mdevs
        mdevs = [
            mdev
            for mdev in self._whole.mdevs()
            if mdev.parent in self._scope and mdev.parent not in newer
        ]
        mdevs += [m for name in self._scope for m in newer.get(name, ())]
        return tuple(sorted(mdevs, key=lambda mdev: mdev.uuid))

    def mdev_parent(self, name: str) -> host_reader.MdevParent | None:
        if name in self._newer.parents:
            return self._newer.parents[name]
        return self._whole.mdev_parent(name)

    def _split(
        self, stale: frozenset[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the VFs of which only mdevs are read, and the rest."""
        places = {p for p in stale if p.endswith(f"/{MDEV_TYPES}")}
        vfs = {place.partition("/")[0] for place in places}
        slots = frozenset(filter(self._has_same_types, vfs))
        return slots, (stale - places) | (vfs - slots)

    def _has_same_types(self, name: str) -> bool:
        """Return whether a VF has changed by new mdevs only, if at all.

        A parent keeps its types, and their texts, while its driver is bound.
        """
        try:
            vf = self.files.resolve(f"{FUNCTIONS}/{name}")
            types = self.files.resolve(f"{vf}/{MDEV_TYPES}")
            entries, type_ids = self.files.names(vf), self.files.names(types)
            new_entries = self.files.list_again(vf)
            new_type_ids = self.files.list_again(types)
        except errors.UnreadableError:
            return False
        added = frozenset(new_entries).difference(entries)
        return (
            type_ids == new_type_ids
            and frozenset(entries) <= frozenset(new_entries)
            and all(map(_UUID.fullmatch, added))
        )

    def _read_stale(self, names: Iterable[str]) -> None:
        present = frozenset(self._listed(FUNCTIONS))
        for name in filter(pci.is_address, names):
            function = self._read_function(name, present)
            before = self._whole.function(name)
            if function is None:
                self._unknown.add(name)
            elif before and not self.function(str(function.physfn)):
                # See _complete_physfns.
                function = dataclasses.replace(function, physfn=before.physfn)
            self._newer.functions[name] = function
        for name in names:
            self._newer.parents[name] = (
                self._read_parent(name) if self._is_parent(name) else None
            )
            self._read_mdevs_on(name)

    def _read_slots(self, slots: Iterable[str]) -> None:
        for name in slots:
            self._read_mdevs_on(name)
        types = self._list_types_in_use()
        for name in slots:
            files = _filter_types(self._list_capacity(name), types)
            self.files.refresh_alike(files)
            self._newer.parents[name] = self._read_parent(name)

    def _read_mdevs_on(self, name: str) -> None:
        mdevs = self._list_mdevs(name)
        if mdevs is not None:
            self._newer.mdevs[name] = mdevs

    def _list_types_in_use(self) -> frozenset[str]:
        return frozenset(mdev.type_id for mdev in self.mdevs())

    def _is_parent(self, name: str) -> bool:
        """Return whether a device can make mdevs, or may be able to."""
        try:
            self.files.link(f"{PARENTS}/{name}")
        except errors.UnreadableError as error:
            return error.number != errno.ENOENT or (
                not pci.is_address(name) and self.mdev_parent(name) is not None
            )
        return True

    def _list_mdevs(self, name: str) -> tuple[host_reader.Mdev, ...] | None:
        """Return the mdevs on a device, None if they can't be listed."""
        for top in (FUNCTIONS, PARENTS):
            directory = f"{top}/{name}"
            try:
                entries = self.files.names(directory)
            except errors.UnreadableError:
                continue
            return tuple(
                self._read_mdev(f"{directory}/{entry}", name)
                for entry in entries
                if _UUID.fullmatch(entry)
            )
        return None

    def _refresh_capacity(
        self, slots: frozenset[str], stale: frozenset[str]
    ) -> bool:
        """Read what free VFs can hold; return whether it has changed.

        Only for slots: while the types in use read the same, the layout of
        the card shows what it can hold of the others. In mixed mode it does
        not, and whole VFs are read (``change_detection``).
        """
        again = slots.union(name.partition("/")[0] for name in stale)
        again = again.union(mdev.parent for mdev in self.mdevs())
        free = [name for name in self._scope if name not in again]
        files = [f for name in free for f in self._list_capacity(name)]
        if not stale:
            in_use = _filter_types(files, self._list_types_in_use())
            if not self.files.refresh_alike(in_use):
                return False
        return self.files.refresh_alike(files) or not stale

    def _list_capacity(self, name: str) -> Iterator[str]:
        """Yield the files of what a VF can hold."""
        function = self.function(name)
        if function is None or function.physfn is None:
            return
        try:
            place = self.files.resolve(f"{FUNCTIONS}/{name}")
        except errors.UnreadableError:
            return
        parent = self.mdev_parent(name)
        for mdev_type in parent.types if parent else ():
            types = f"{place}/{MDEV_TYPES}"
            yield f"{types}/{mdev_type.type_id}/available_instances"
        if self.files.known_text(f"{place}/{_CURRENT}") == _NO_TYPE:
            yield f"{place}/{_CREATABLE}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Newer:
    """Results by name; None for a function or parent that is unknown."""

    functions: dict[str, pci.PciFunction | None] = dataclasses.field(
        default_factory=dict
    )
    parents: dict[str, host_reader.MdevParent | None] = dataclasses.field(
        default_factory=dict
    )
    mdevs: dict[str, tuple[host_reader.Mdev, ...]] = dataclasses.field(
        default_factory=dict
    )

    def without(self, names: frozenset[str]) -> "_Newer":
        return _Newer(
            _exclude(self.functions, names),
            _exclude(self.parents, names),
            _exclude(self.mdevs, names),
        )


def _exclude(results: Mapping[str, T], names: frozenset[str]) -> dict[str, T]:
    return {n: result for n, result in results.items() if n not in names}


def _filter_types(files: Iterable[str], type_ids: frozenset[str]) -> list[str]:
    """Return the files in the directories of some mdev types."""
    return [path for path in files if path.split("/")[-2] in type_ids]


def _list_places(
    reader: host_reader.HostReader, names: Iterable[str]
) -> Iterator[str]:
    """Yield the directories of functions and parents, and their links."""
    for name in names:
        for top in (FUNCTIONS, PARENTS):
            if "/" not in name:
                yield f"{top}/{name}"
            try:
                yield reader.files.resolve(f"{top}/{name}")
            except errors.UnreadableError:
                continue  # no function, or no parent


def _expand(
    reader: host_reader.HostReader, names: Iterable[str]
) -> Iterator[str]:
    """Yield the names, and the functions that belong to them."""
    for name in names:
        yield name
        function = reader.function(name)
        if function is None:
            continue
        slot = name.rpartition(".")[0]
        yield from (f"{slot}.{number}" for number in _FUNCTION_NUMBERS)
        yield from map(str, function.virtual_functions)
        yield from map(str, function.group_members)
