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
        directories in them (``0000:3b:00.4/nvidia``).
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
        stale = frozenset(stale)
        places = tuple(_list_places(earlier, stale))
        super().__init__(files=earlier.files.without(places), gpus=gpus)
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
        if stale and self.files.refresh_alike(self._list_free_capacity(stale)):
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
            mdevs = self._list_mdevs(name)
            if mdevs is not None:
                self._newer.mdevs[name] = mdevs

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

    def _list_free_capacity(self, stale: frozenset[str]) -> Iterator[str]:
        """Yield the files of what the free VFs not read again can hold."""
        again = {name.partition("/")[0] for name in stale}
        again |= {mdev.parent for mdev in self.mdevs()}
        for name in self._scope:
            function = self.function(name)
            if function is None or function.physfn is None or name in again:
                continue
            try:
                place = self.files.resolve(f"{FUNCTIONS}/{name}")
            except errors.UnreadableError:
                continue
            parent = self.mdev_parent(name)
            for mdev_type in parent.types if parent else ():
                types = f"{place}/mdev_supported_types"
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
