# SPDX-License-Identifier: Apache-2.0
"""Change detection: which devices of a host must be read again.

A full reading reads every file once. Later passes compare four sources
with it: the kernel's count of uevents, attributes that change without a
uevent (``_SILENT``), NVML's answers (MIG changes send no uevent) and the
notes below ``state_dir``. The host is read again only if one of them
differs, or after ``FULL_READ_INTERVAL_S``.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Protocol, TypeVar

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host import bounded_calls
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.state import drains, error_baseline, faults
from nova_accel.host.sysfs import (
    error_counters,
    fs,
    host_reader,
    modules,
    partial_reader,
    udev,
)
from nova_accel.inventory import conditions
from nova_accel.model import pci

LOG = logging.getLogger(__name__)

# Attributes that change without a uevent.
_SILENT = (
    "current_vgpu_type",
    "afu_id",
    "xclbinuuid",
    "qat/state",
    "qat/cfg_services",
    "aer_dev_fatal",
)
# Seconds between two full readings at most: without NVML, GPU instances
# made with the vendor's tool are not noticed otherwise. Nova audits a
# host's resources at most this often (update_resources_interval).
FULL_READ_INTERVAL_S = 300

_NVIDIA = "10de"
# Directories of VFs that show their partitions, by technology.
_PARTITION_SUFFIXES = {
    "vendor-vfio": "/nvidia",
    "mdev": f"/{partial_reader.MDEV_TYPES}",
}

ReadGpus = Callable[[], Mapping[str, gpu_reader.NvmlGpu]]
Note_co = TypeVar("Note_co", covariant=True)


class NoteReader(Protocol[Note_co]):
    """Reader of the notes on devices."""

    def read(self) -> Mapping[str, Note_co]:
        """Return the notes by address, or raise UnreadableError."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoteStores:
    """Stores of the notes that a reading applies; None for no store.

    ``faulted`` has the devices at fault, ``drained`` the devices that the
    operator drains, ``baseline`` the error counts that the operator
    acknowledged.
    """

    faulted: faults.FaultNotes | None = None
    drained: drains.DrainNotes | None = None
    baseline: error_baseline.ErrorBaseline | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Notes:
    """Content of the note stores at one time.

    ``faulted`` and ``drained`` are None if they were never read with
    success. ``assigned`` are the functions that servers have. ``error`` is
    why they can't be read now, empty if they can.
    """

    faulted: conditions.Faults | None = None
    drained: conditions.Drains | None = None
    baseline: Mapping[str, int] = dataclasses.field(default_factory=dict)
    assigned: frozenset[str] = frozenset()
    error: str = ""

    def has_same_marks(self, other: "_Notes") -> bool:
        """Return whether only the functions that servers have may differ."""
        return dataclasses.replace(self, assigned=other.assigned) == other


class ChangeDetector:
    """Reader of one host that skips what has not changed. Thread-safe."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        read_gpus: ReadGpus = dict,
        stores: NoteStores | None = None,
        uevents: udev.UeventLog | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param read_gpus: returns NVML's answers by PCI address.
        :param stores: notes to apply to each reading; None for no notes.
        :param uevents: the functions that uevents name; None to read the
            host after each uevent.
        """
        self._source = source
        self._drivers = drivers
        self._rules = rules
        self._call_nvml = read_gpus
        #: NVML's last answers, also those that changed nothing.
        self.gpus: Mapping[str, gpu_reader.NvmlGpu] = {}
        self._stores = stores or NoteStores()
        self._uevents = uevents or udev.UeventLog()
        self._notes = _Notes()
        self._lock = threading.Lock()
        self._last_reader = host_reader.HostReader(source=source)
        self._has_read = False
        self._silent_values: dict[str, str | int] = {}
        # Uevent count and time of the last full reading; the count is None
        # if the next reading must be a full one.
        self._uevent_count: str | None = None
        self._read_at = 0.0
        # Partial readers by card, newer than the last full reading, each
        # with the number of its reading.
        self._partial: dict[str, tuple[int, partial_reader.PartialReader]] = {}
        self._numbers = itertools.count()

    def _read_gpus(self) -> Mapping[str, gpu_reader.NvmlGpu]:
        self.gpus = gpus = self._call_nvml()
        return gpus

    def check_notes(self) -> None:
        """Check that the notes on devices can be read.

        Call it before the first reading: later readings fall back on the
        last notes, but without any notes all devices would seem healthy.

        :raises UnreadableError: a store can't be read.
        """
        for store in (self._stores.faulted, self._stores.drained):
            if store is not None:
                store.read()

    def open_reader(self) -> host_reader.HostReader:
        """Return a fresh reader of the host.

        NVML is called only if the host has an NVIDIA GPU.
        """
        reader = host_reader.HostReader(source=self._source)
        if not _has_nvidia(reader):
            return reader
        return reader.with_gpus(self._read_gpus())

    def read(self) -> model.HostState:
        """Return the host after a full reading."""
        self._uevents.take()
        now, count = time.monotonic(), modules.read_count(self._source)
        number = next(self._numbers)
        reader = self.open_reader()
        notes = self._read_notes()
        state = self._describe(reader, notes)
        with self._lock:
            self._last_reader, self._has_read = reader, True
            self._silent_values = _list_silent(reader)
            self._partial = {
                card: (begun, partial)
                for card, (begun, partial) in self._partial.items()
                if begun > number
            }
            for _, partial in self._partial.values():
                self._silent_values |= _list_silent(partial)
            self._uevent_count, self._read_at = count, now
            self._notes = notes
        return state

    def read_changed(self) -> model.HostState | None:
        """Return the host after a full reading, None if it is unchanged."""
        return None if self.find_changes() == frozenset() else self.read()

    def find_changes(self) -> frozenset[str] | None:
        """Return the functions that may have changed, None for the host.

        The next call does not return them again.
        """
        with self._lock:
            last_reader, count = self._last_reader, self._uevent_count
            notes = self._notes
            silent_values = dict(self._silent_values)
        names = self._uevents.take()
        if (
            count is None
            or time.monotonic() - self._read_at > FULL_READ_INTERVAL_S
            or (names is None and modules.read_count(self._source) != count)
            or error_counters.has_changed(last_reader)
        ):
            return None
        changed = {*(names or ())}
        changed |= bounded_calls.run(
            lambda: {*self._find_silent_changes(silent_values)}
        )
        if _has_nvidia(last_reader):
            changed.update(self._find_gpu_changes(self._read_gpus()))
        # After the GPUs: reading them may write notes on Xid errors.
        current = self._read_notes()
        if "" in changed or not current.has_same_marks(notes):
            return None
        with self._lock:
            self._notes = current
        # Those that no server has any more may not be offered now.
        return frozenset(changed | (notes.assigned - current.assigned))

    def is_irrelevant(self, name: str) -> bool:
        """Return whether a function can't affect any device.

        It is no accelerator, and in no IOMMU group with one.
        """
        try:
            function = self._last_reader.function(name)
            group = () if function is None else function.group_members
            members = [self._last_reader.function(str(a)) for a in group]
        except errors.UnreadableError:
            return False
        return function is not None and not any(
            member is None
            or pci_ids.is_candidate(member)
            or self._rules.rule(
                str(member.address), member.vendor, member.product
            ).is_specific
            for member in (function, *members)
        )

    def read_devices(
        self,
        devices: Iterable[model.Device],
        places: Collection[str] = (),
    ) -> model.HostState:
        """Return the state of some devices after reading them again.

        :param devices: devices of the last reading.
        :param places: VFs of these devices, or results of
            ``list_partition_places``: only these are read again, and what
            the free VFs of the card can hold now. Empty to read all
            functions of the devices.
        """
        cards: dict[str, list[model.Device]] = {}
        for device in devices:
            cards.setdefault(device.parent or device.address, []).append(
                device
            )
        if not self._has_read:
            return self.read()
        read_gpus = functools.cache(self._read_gpus)
        try:
            states = [
                self._read_card(card, parts, places, read_gpus)
                for card, parts in cards.items()
            ]
        except errors.UnreadableError:
            return self.read()  # the last reading has listed no device
        return model.HostState(
            devices=tuple(d for state in states for d in state.devices),
            problems=tuple(p for state in states for p in state.problems),
            unknown=frozenset().union(*(state.unknown for state in states)),
            complete=all(state.complete for state in states),
        )

    def _read_card(
        self,
        card: str,
        devices: Collection[model.Device],
        places: Collection[str],
        read_gpus: ReadGpus,
    ) -> model.HostState:
        """Return the state of a card's devices after reading them again.

        Each partial reading of a card begins with the last one: the full
        reading lacks the partitions made since.
        """
        names = {name for device in devices for name in list_names(device)}
        stale = _list_stale(devices, places)
        # A vGPU without a GPU instance of its own changes nothing that NVML
        # reports and the kernel does not.
        is_whole = not stale or any(d.geometry.is_dynamic for d in devices)
        notes = self._read_notes()
        while True:
            number = next(self._numbers)
            earlier = self._get_reader(card)
            gpus = earlier.gpus
            if is_whole and _has_nvidia(earlier, names):
                gpus = read_gpus()
            reader = bounded_calls.run(
                functools.partial(
                    partial_reader.PartialReader,
                    *(earlier, names, stale or names, gpus),
                )
            )
            state = self._describe(reader, notes, {d.address for d in devices})
            with self._lock:
                if not notes.has_same_marks(self._notes):
                    self._uevent_count = None
                is_newest = self._get_reader(card) is earlier
                if is_newest:
                    self._partial[card] = number, reader
                    self._silent_values |= _list_silent(reader)
            if is_newest:
                return state

    def _get_reader(self, card: str) -> host_reader.HostReader:
        """Return the last reader of a card."""
        return self._partial.get(card, (0, self._last_reader))[1]

    def _describe(
        self,
        reader: host_reader.HostReader,
        notes: _Notes,
        addresses: Collection[str] | None = None,
    ) -> model.HostState:
        """Return the host with fault and drain marks.

        :param addresses: devices that were just read; None for all.
        """
        # A device in use is not withdrawn if it turns out to have no reset.
        rules = dataclasses.replace(self._rules, assigned=notes.assigned)
        state = scan.read(reader, self._drivers, rules)
        read_faults = error_counters.find_faults(
            reader, state.devices, self._stores.baseline
        )
        state, healed = conditions.mark_faults(
            conditions.mark_unhealthy(state, read_faults),
            notes.faulted or {},
            addresses,
        )
        if healed:
            self._remove_faults(healed)
        is_first = notes.faulted is None or notes.drained is None
        state = conditions.mark_drains(state, notes.drained or {})
        if notes.error:
            state = conditions.mark_unknown(state, notes.error, is_first)
        return state

    def _remove_faults(self, addresses: Collection[str]) -> None:
        if self._stores.faulted is None:
            return
        # The next reading tries again after a failure.
        with contextlib.suppress(OSError, errors.UnreadableError):
            self._stores.faulted.heal(addresses)
            LOG.info("healed: %s", ", ".join(sorted(addresses)))

    def _read_notes(self) -> _Notes:
        """Return the notes; those of the last pass if they can't be read."""
        with self._lock:
            last = self._notes
        stores = self._stores
        faulted, faulted_error = _read_store(stores.faulted, last.faulted)
        drained, drained_error = _read_store(stores.drained, last.drained)
        return _Notes(
            faulted=faulted,
            drained=drained,
            baseline=stores.baseline.read() if stores.baseline else {},
            assigned=_read_assigned(stores.faulted, last.assigned),
            error=faulted_error or drained_error,
        )

    def _find_silent_changes(
        self, values: Mapping[str, str | int]
    ) -> Iterator[str]:
        """Yield the functions of the attributes that have changed."""
        files = fs.Files(self._source)
        for path, value in values.items():
            if files.read_text(path) != value:
                parts = reversed(path.split("/"))
                yield next(filter(pci.is_address, parts), "")

    def _find_gpu_changes(
        self, gpus: Mapping[str, gpu_reader.NvmlGpu]
    ) -> Iterator[str]:
        """Yield the GPUs with other GPU instances; "" for other changes.

        Other changes of one GPU may affect the devices of others. Those of
        guests (boots, licences) change no device.
        """
        for address in gpus.keys() | self._last_reader.gpus.keys():
            gpu = gpus.get(address)
            before = self._get_reader(address).gpus.get(address)
            if gpu is not None and before is not None:
                gpu = dataclasses.replace(gpu, vgpus=before.vgpus)
            if gpu != before:
                is_same = (
                    gpu is not None
                    and before is not None
                    and dataclasses.replace(gpu, instances=before.instances)
                    == before
                )
                yield address if is_same else ""


def _read_store(
    store: NoteReader[Note_co] | None, last: Mapping[str, Note_co] | None
) -> tuple[Mapping[str, Note_co] | None, str]:
    """Return notes and no error, or the last notes and the error."""
    if store is None:
        return {}, ""
    try:
        return store.read(), ""
    except errors.UnreadableError as error:
        return last, str(error)


def _read_assigned(
    store: faults.FaultNotes | None, last: frozenset[str]
) -> frozenset[str]:
    """Return the functions that servers have; the last ones on an error."""
    if store is None:
        return frozenset()
    try:
        return frozenset(store.read_unreleased())
    except errors.UnreadableError:
        return last


def merge(
    host: model.HostState, newer: model.HostState, addresses: Iterable[str]
) -> model.HostState:
    """Return a host with some of its devices replaced by a newer reading.

    :param addresses: the devices to replace. A device that the newer
        reading lacks is gone, or unknown if that reading is incomplete.
    """
    replaced = frozenset(addresses)
    if not replaced:
        return host
    unchanged = [d for d in host.devices if d.address not in replaced]
    updated = [d for d in newer.devices if d.address in replaced]
    unread = replaced - {device.address for device in updated}
    if newer.complete:
        unread = frozenset()
    replaced_names = replaced | {
        name
        for device in (*host.devices, *updated)
        if device.address in replaced
        for name in list_names(device)
    }
    return model.HostState(
        devices=tuple(sorted((*unchanged, *updated), key=scan.sort_key)),
        problems=tuple(
            sorted(
                {p for p in host.problems if p.address not in replaced_names}
                | {
                    p
                    for p in newer.problems
                    if p.address in replaced_names
                    or (unread and scan.is_driver_failure(p))
                },
                key=lambda p: (p.where, p.reason),
            )
        ),
        unknown=(host.unknown - replaced_names)
        | (newer.unknown & replaced_names)
        | unread,
        complete=host.complete,
    )


def list_partition_places(
    device: model.Device, slots: Iterable[str]
) -> frozenset[str]:
    """Return the places from which the partitions in some slots are read.

    Empty if all of the device has to be read. In mixed mode sysfs does not
    have the places of mdevs: they change what the card can hold of any type,
    so the whole slots are read, and with them all types of the free ones.
    """
    suffix = _PARTITION_SUFFIXES.get(device.technology, "")
    is_mixed = device.geometry.layout is model.Layout.MIXED
    if is_mixed and device.technology == "mdev":
        suffix = ""
    return frozenset(
        f"{slot}{suffix}" for slot in slots if slot in _list_vfs(device)
    )


def _list_vfs(device: model.Device) -> frozenset[str]:
    """Return the VFs of a device that can be read without the others."""
    if device.region is not None or device.address in device.slots:
        return frozenset()
    return frozenset(filter(pci.is_address, device.slots))


def _list_stale(
    devices: Iterable[model.Device], places: Iterable[str]
) -> frozenset[str]:
    """Return the places below some devices, empty for all of them."""
    vfs = {vf for device in devices for vf in _list_vfs(device)}
    names = {name for device in devices for name in list_names(device)}
    stale = {p for p in places if p.partition("/")[0] in names}
    is_partial = all(place.partition("/")[0] in vfs for place in stale)
    return frozenset(stale if is_partial else ())


def _list_silent(reader: host_reader.HostReader) -> dict[str, str | int]:
    """Return the values that change without a uevent, by path."""
    return {
        path: value
        for name in _SILENT
        for path, value in reader.files.texts(name).items()
    }


def _has_nvidia(
    reader: host_reader.HostReader, names: Iterable[str] | None = None
) -> bool:
    """Return whether the host has an NVIDIA GPU, at one of these names."""
    try:
        functions = (
            reader.functions()
            if names is None
            else filter(None, map(reader.function, names))
        )
    except errors.UnreadableError:
        return False  # no driver can describe a device either
    return any(f.vendor == _NVIDIA and f.is_display for f in functions)


def list_names(device: model.Device) -> tuple[str, ...]:
    """Return the names of a device's functions in sysfs."""
    return (
        device.parent or device.address,
        *device.members,
        *filter(pci.is_address, device.slots),
    )
