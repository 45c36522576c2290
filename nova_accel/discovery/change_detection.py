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
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.state import drains, error_baseline, faults
from nova_accel.host.sysfs import error_counters, fs, host_reader, modules
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
    success. ``error`` is why they can't be read now, empty if they can.
    """

    faulted: conditions.Faults | None = None
    drained: conditions.Drains | None = None
    baseline: Mapping[str, int] = dataclasses.field(default_factory=dict)
    error: str = ""


class ChangeDetector:
    """Reader of one host that skips what has not changed. Thread-safe."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        read_gpus: ReadGpus = dict,
        stores: NoteStores | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param read_gpus: returns NVML's answers by PCI address.
        :param stores: notes to apply to each reading; None for no notes.
        """
        self._source = source
        self._drivers = drivers
        self._rules = rules
        self._read_gpus = read_gpus
        self._stores = stores or NoteStores()
        self._notes = _Notes()
        self._lock = threading.Lock()
        self._last_reader: host_reader.HostReader | None = None
        self._silent_values: Mapping[str, str | int] = {}
        # Uevent count and time of the last full reading; the count is None
        # if the next reading must be a full one.
        self._uevent_count: str | None = None
        self._read_at = 0.0

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
        now, count = time.monotonic(), modules.read_count(self._source)
        reader = self.open_reader()
        notes = self._read_notes()
        state = self._describe(reader, notes)
        silent_values = {
            path: value
            for name in _SILENT
            for path, value in reader.files.texts(name).items()
        }
        with self._lock:
            self._last_reader, self._silent_values = reader, silent_values
            self._uevent_count, self._read_at = count, now
            self._notes = notes
        return state

    def read_changed(self) -> model.HostState | None:
        """Return the host after a full reading, None if it is unchanged."""
        with self._lock:
            last_reader, silent_values = self._last_reader, self._silent_values
            count, read_at = self._uevent_count, self._read_at
            notes = self._notes
        if (
            last_reader is None
            or count is None
            or time.monotonic() - read_at > FULL_READ_INTERVAL_S
            or modules.read_count(self._source) != count
            or self._has_silent_change(silent_values)
            or error_counters.has_changed(last_reader)
            or (
                _has_nvidia(last_reader)
                and self._read_gpus() != last_reader.gpus
            )
            # After the GPUs: reading them may write notes on Xid errors.
            or self._read_notes() != notes
        ):
            return self.read()
        return None

    def read_devices(self, devices: Iterable[model.Device]) -> model.HostState:
        """Return the host after reading only these devices again.

        The other devices are as old as the last full reading: take only
        these devices from the result.
        """
        with self._lock:
            last_reader = self._last_reader
        if last_reader is None:
            return self.read()
        devices = tuple(devices)
        names = {name for device in devices for name in _names(device)}
        gpus = last_reader.gpus
        if _has_nvidia(last_reader, names):
            gpus = self._read_gpus()
        reader = last_reader.reread(names, gpus)
        notes = self._read_notes()
        with self._lock:
            if notes != self._notes:
                self._uevent_count = None
        return self._describe(
            reader, notes, {device.address for device in devices}
        )

    def _describe(
        self,
        reader: host_reader.HostReader,
        notes: _Notes,
        addresses: Collection[str] | None = None,
    ) -> model.HostState:
        """Return the host with fault and drain marks.

        :param addresses: devices that were just read; None for all.
        """
        state = scan.read(reader, self._drivers, self._rules)
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
            error=faulted_error or drained_error,
        )

    def _has_silent_change(self, values: Mapping[str, str | int]) -> bool:
        files = fs.Files(self._source)
        return any(
            _read_value(files, path) != value for path, value in values.items()
        )


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
        for name in _names(device)
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


def _has_nvidia(
    reader: host_reader.HostReader, names: Iterable[str] | None = None
) -> bool:
    """Return whether the host has an NVIDIA GPU, at one of these names."""
    try:
        functions = reader.functions()
    except errors.UnreadableError:
        return False  # no driver can describe a device either
    addresses = None if names is None else frozenset(names)
    return any(
        function.vendor == _NVIDIA
        and function.is_display
        and (addresses is None or str(function.address) in addresses)
        for function in functions
    )


def _names(device: model.Device) -> tuple[str, ...]:
    """Return the names of a device's functions in sysfs."""
    return (
        device.parent or device.address,
        *device.members,
        *filter(pci.is_address, device.slots),
    )


def _read_value(files: fs.Files, path: str) -> str | int:
    """Return a file's text, or the errno of the failed read."""
    try:
        return files.text(path)
    except errors.UnreadableError as error:
        return error.number
