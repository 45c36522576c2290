# SPDX-License-Identifier: Apache-2.0
"""Reader of a host of which some functions are read again.

It costs what these functions cost, however many others the host has. The
earlier reader stays as it is, so that several cards are read concurrently.
"""

import dataclasses
import errno
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.host import file_cache, nvml_gpus
from nova_accel.host.sysfs import attributes, host_reader
from nova_accel.host.sysfs.host_reader import FUNCTIONS, PARENTS, T
from nova_accel.model import pci

# NVIDIA's VFs that have a type each; see vendors/nvidia/vf_files.
_TYPED = "nvidia"
_CURRENT = f"{_TYPED}/current_vgpu_type"
_CREATABLE = f"{_TYPED}/creatable_vgpu_types"
_NO_TYPE = "0"
# Directory of the types of an mdev parent, and a file of each type.
_MDEV_TYPES = "mdev_supported_types"
_AVAILABLE = "available_instances"
_WITHOUT_TYPE_TEXTS = file_cache.Paths(
    ("/",), re.compile(rf"/{_MDEV_TYPES}/[^/]+/(name|description|device_api)$")
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Names of the functions and mdev parents that are read again.

    ``functions`` are read completely, of ``typed_vfs`` the type, of
    ``parents`` the mdevs, and how many more they can create of ``types`` and
    of the types in use. Unless these are all functions of the card
    (``is_whole``), what its free VFs can hold is read, too.
    """

    is_whole: bool = False

    functions: frozenset[str] = frozenset()
    typed_vfs: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all functions and parents."""
        return self.functions | self.typed_vfs | self.parents


class RepeatedReader(host_reader.HostReader):
    """Reader with the results of an earlier one, until they are read again.

    :raises UnreadableError: the earlier reader could not list the host.
    """

    def __init__(
        self,
        earlier: host_reader.HostReader,
        gpus: Mapping[str, nvml_gpus.NvmlGpu],
    ) -> None:
        super().__init__(files=earlier.files.copy(), gpus=gpus)
        self._results = dataclasses.replace(
            earlier._results,
            functions=dict(earlier._by_address()),
            parents=dict(earlier._parents_by_name()),
            mdevs=dict(earlier._mdevs_by_parent()),
            unknown=set(earlier._results.unknown),
            problems=dict(earlier._results.problems),
            type_texts=dict(earlier._results.type_texts),
        )

    def take_from(
        self, other: host_reader.HostReader, names: Iterable[str]
    ) -> None:
        """Use what another reader has of some functions."""
        own, others = self._results, other._results
        for name in names:
            self.files.take_from(other.files, name)
            _set(self._by_address(), name, other._by_address())
            _set(self._parents_by_name(), name, other._parents_by_name())
            _set(self._mdevs_by_parent(), name, other._mdevs_by_parent())
            _set(own.problems, name, others.problems)
            own.unknown.discard(name)
            own.unknown |= others.unknown & {name}
        own.cards = None

    def read_again(self, stale: Stale, scope: Collection[str]) -> bool:
        """Read some functions again; return whether anything has changed.

        :param scope: names of the card's functions.
        """
        is_changed = False
        is_free_known = not (stale.functions or stale.typed_vfs)
        for name in stale.functions:
            is_changed |= self._read_all(name)
        for name in stale.typed_vfs:
            place = f"{self._find_place(name)}/{_TYPED}/"
            paths = file_cache.Paths((place,))
            is_changed |= self.files.read_again(name, paths)
        for name in stale.parents:
            has_changed, has_only_new = self._read_mdevs_of(
                name, scope, stale.types
            )
            is_changed |= has_changed
            is_free_known &= has_only_new
        if not stale.is_whole:
            is_changed |= self._read_free(stale, scope, is_free_known)
        return is_changed

    def _find_place(self, name: str) -> str:
        """Return the directory of a function or mdev parent, or its link."""
        for top in (FUNCTIONS, PARENTS):
            try:
                return self.files.resolve(f"{top}/{name}")
            except errors.UnreadableError:
                continue
        return f"{FUNCTIONS}/{name}"

    def _read_all(self, name: str) -> bool:
        function = self.function(name)
        if not pci.is_address(name):
            place = self._find_place(name)
            paths = (f"{PARENTS}/{name}", place, f"{place}/")
            is_changed = self.files.read_again("", file_cache.Paths(paths))
        elif function is not None and function.physfn:
            # The texts of its types are those of all VFs of the card.
            is_changed = self.files.read_again(name, _WITHOUT_TYPE_TEXTS)
        else:
            is_changed = self.files.read_again(name)
        if is_changed:
            self._parse(name)
        return is_changed

    def _parse(self, name: str) -> None:
        """Parse a function or mdev parent from the files that were read."""
        results, functions = self._results, self._by_address()
        results.problems[name] = {}
        results.unknown.discard(name)
        for key in [key for key in results.type_texts if key[0] == name]:
            del results.type_texts[key]
        before = functions.get(name)
        if pci.is_address(name):
            function = self._read_function(
                name, frozenset(self._listed(FUNCTIONS))
            )
            if function is None:
                results.unknown.add(name)
            elif before and str(function.physfn) not in functions:
                # See _complete_physfns.
                function = dataclasses.replace(function, physfn=before.physfn)
            if function != before:
                _set(functions, name, {name: function} if function else {})
                results.cards = None
        parent = self._read_parent(name) if self._is_parent(name) else None
        _set(self._parents_by_name(), name, {name: parent} if parent else {})
        self._parse_mdevs(name)

    def _is_parent(self, name: str) -> bool:
        """Return whether a device can make mdevs, or may be able to."""
        try:
            self.files.link(f"{PARENTS}/{name}")
        except errors.UnreadableError as error:
            return error.number != errno.ENOENT or (
                not pci.is_address(name) and self.mdev_parent(name) is not None
            )
        return True

    def _parse_mdevs(self, name: str) -> None:
        """Set the mdevs on a device, unless they can't be listed."""
        for top in (FUNCTIONS, PARENTS):
            directory = f"{top}/{name}"
            try:
                entries = self.files.names(directory)
            except errors.UnreadableError:
                continue
            self._mdevs_by_parent()[name] = tuple(
                self._read_mdev(f"{directory}/{entry}", name)
                for entry in entries
                if _UUID.fullmatch(entry)
            )
            return

    def _read_mdevs_of(
        self, name: str, scope: Collection[str], type_ids: Collection[str]
    ) -> tuple[bool, bool]:
        """Read the mdevs on a parent, and what it can create beside them.

        A parent keeps its types, and their texts, while its driver is bound.
        If it has other entries than before, all of it is read.

        :returns: whether anything has changed, and whether at most by new
            mdevs.
        """
        place, mdevs = self._find_place(name), self._mdevs_by_parent()
        types = f"{place}/{_MDEV_TYPES}"
        before, listed = mdevs.get(name, ()), self._list_entries(place, types)
        used = {mdev.type_id for mdev in before}.union(type_ids)
        stale = _list_available(types, used)
        stale += [f"{place}/{mdev.uuid}/mdev_type" for mdev in before]
        paths = file_cache.Paths(stale)
        if not self.files.read_again(name, paths, (place, types)):
            return False, True
        if not listed or self._list_entries(place, types) != listed:
            self.files.read_again(name)
            self._parse(name)
            return True, False
        # An mdev may be removed and made again with the same uuid.
        entries = {e for e in self.files.names(place) if _UUID.fullmatch(e)}
        changed = [f"{place}/{e}" for e in entries ^ {m.uuid for m in before}]
        paths = file_cache.Paths([*changed, *(f"{p}/" for p in changed)])
        self.files.read_again(name, paths)
        self._parse_mdevs(name)
        has_only_new = {*before} <= {*mdevs[name]}
        self._read_available(name, used, scope, is_all=not has_only_new)
        return True, has_only_new

    def _list_entries(self, place: str, types: str) -> frozenset[str]:
        """Return the entries of a parent without mdevs, and its types.

        Empty if they can't be listed.
        """
        try:
            entries = self.files.names(place) + self.files.names(types)
        except errors.UnreadableError:
            return frozenset()
        return frozenset([e for e in entries if not _UUID.fullmatch(e)])

    def _read_available(
        self,
        name: str,
        used: Collection[str],
        scope: Collection[str],
        *,
        is_all: bool,
    ) -> None:
        """Read how many more mdevs a parent can create.

        A VF has room for one mdev, whatever its type. A new mdev on another
        parent changes the types of its memory, or of unknown memory; the
        layout of the card excludes the others.

        :param used: types whose files have just been read.
        :param is_all: read all types.
        """
        parent = self.mdev_parent(name)
        if parent is None:
            return
        mdevs = [m for n in scope for m in self._mdevs_by_parent().get(n, ())]
        in_use = {mdev.type_id for mdev in mdevs}
        stale = {t.type_id for t in parent.types} if is_all else in_use
        if parent.physfn is None:
            sizes = {t.type_id: _get_memory(t) for t in parent.types}
            in_use_sizes = {sizes.get(type_id) for type_id in in_use}
            stale |= {
                i for i, s in sizes.items() if s in {None, *in_use_sizes}
            }
        types = f"{self._find_place(name)}/{_MDEV_TYPES}"
        paths = file_cache.Paths(_list_available(types, stale - {*used}))
        self.files.read_again(name, paths)
        self._set_available(name, stale | {*used})

    def _set_available(self, name: str, type_ids: Collection[str]) -> None:
        """Set how many more mdevs a parent can create, from its files."""
        parents, place = self._parents_by_name(), f"{PARENTS}/{name}"
        mdev_types = []
        for mdev_type in parents[name].types:
            facts = attributes.MdevTypeAttributes(
                self.files, f"{place}/{_MDEV_TYPES}/{mdev_type.type_id}"
            )
            available = mdev_type.available
            if mdev_type.type_id in type_ids:
                available = facts.available()
            mdev_types.append(
                mdev_type
                if available == mdev_type.available
                else dataclasses.replace(mdev_type, available=available)
            )
            if facts.reasons or self._results.problems.get(name):
                self._parse(name)
                return
        parents[name] = dataclasses.replace(
            parents[name], types=tuple(mdev_types)
        )

    def _read_free(
        self, stale: Stale, scope: Collection[str], is_known: bool
    ) -> bool:
        """Read what free VFs can hold; return whether it has changed.

        Those for which that read the same before are taken to still do, and
        one of them is read.

        :param is_known: whether the layout of the card shows what it can
            hold of the types that are not in use, while those in use read
            the same.
        """
        mdevs = self._mdevs_by_parent()
        occupied = {name for name in scope if mdevs.get(name)}
        free = [n for n in scope if n not in occupied | stale.names]
        files = [path for name in free for path in self._list_capacity(name)]
        if is_known:
            in_use = {m.type_id for name in occupied for m in mdevs[name]}
            used = [f for f in files if f.split("/")[-2] in in_use]
            if not self.files.refresh_alike(used):
                return False
        if not self.files.refresh_alike(files) and not is_known:
            return False
        for name in free:
            parent = self.mdev_parent(name)
            if parent is not None and parent.physfn is not None:
                self._set_available(name, {t.type_id for t in parent.types})
        return True

    def _list_capacity(self, name: str) -> Iterator[str]:
        """Yield the files of what a VF can hold."""
        function = self.function(name)
        if function is None or function.physfn is None:
            return
        place = self._find_place(name)
        parent = self.mdev_parent(name)
        if parent is not None:
            type_ids = [mdev_type.type_id for mdev_type in parent.types]
            yield from _list_available(f"{place}/{_MDEV_TYPES}", type_ids)
        if self.files.known_text(f"{place}/{_CURRENT}") == _NO_TYPE:
            yield f"{place}/{_CREATABLE}"


def _set(results: dict[str, T], name: str, others: Mapping[str, T]) -> None:
    """Set a result to that of others, or remove it."""
    if name in others:
        results[name] = others[name]
    else:
        results.pop(name, None)


def _list_available(types: str, type_ids: Iterable[str]) -> list[str]:
    """Return the files that say how many more mdevs can be created."""
    return [f"{types}/{type_id}/{_AVAILABLE}" for type_id in type_ids]


def _get_memory(mdev_type: host_reader.MdevType) -> int | None:
    return mdev_names.parse_description(mdev_type.description).memory_mb
