# SPDX-License-Identifier: Apache-2.0
"""Change detection: which devices of a host must be read again.

A full reading reads every file once. Later passes compare five sources
with it: the kernel's count of uevents, functions with their drivers and
models (uevents may be missing), attributes that change without a uevent
(``_SILENT``), NVML's answers (MIG changes send no uevent) and the notes
below ``state_dir``. The host is read again only if one of them differs, or
after ``FULL_READ_INTERVAL_S``.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.discovery import host_readings, note_stores, plugin
from nova_accel.host import bounded_calls, nvml_gpus, presence
from nova_accel.host.sysfs import (
    error_counters,
    fs,
    host_reader,
    udev,
)
from nova_accel.model import pci

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


class ChangeDetector(host_readings.HostReadings):
    """Readings of one host that skip unchanged cards. Thread-safe."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        read_gpus: nvml_gpus.ReadGpus = dict,
        stores: note_stores.NoteStores | None = None,
        uevents: udev.UeventLog | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param read_gpus: returns NVML's answers by PCI address.
        :param stores: notes to apply to each reading; None for no notes.
        :param uevents: the functions that uevents name; None to read the
            host after each uevent.
        """
        super().__init__(source, drivers, rules, read_gpus, stores)
        self._uevents = uevents or udev.UeventLog()
        # Uevent count and time of the last full reading; the count is None
        # if the next reading must be a full one.
        self._uevent_count: str | None = None
        self._read_at = 0.0
        #: Functions that servers had at the last call of find_changes.
        self._assigned: frozenset[str] = frozenset()
        #: Functions on the buses, and what a reader has read of them: silent
        #: attributes, and the models of cards.
        self._presence: presence.Presence | None = None
        self._silent: tuple[
            host_reader.HostReader | None, Mapping[str, str | int]
        ] = (None, {})
        self._models: Mapping[str, str] = {}

    def read(self) -> model.HostState:
        """Return the host after a full reading."""
        self._uevents.take()
        now, count = time.monotonic(), presence.read_count(self._source)
        present = self._read_presence()
        state = super().read()
        with self._lock:
            self._uevent_count, self._read_at = count, now
            self._presence = present
            self._assigned = self._newest.notes.assigned
        return state

    def read_changed(self) -> model.HostState | None:
        """Return the host after a full reading, None if it is unchanged."""
        return None if self.find_changes() == frozenset() else self.read()

    def find_changes(self) -> frozenset[str] | None:
        """Return the functions that may have changed, None for the host.

        The next call does not return them again.
        """
        newest, count = self._newest, self._uevent_count
        names = self._uevents.take()
        if (
            count is None
            or time.monotonic() - self._read_at > FULL_READ_INTERVAL_S
            or (names is None and presence.read_count(self._source) != count)
            or error_counters.has_changed(newest.reader)
        ):
            return None
        changed = {*(names or ()), *self._find_rebound()}
        silent = self._get_silent(newest.reader)
        changed |= bounded_calls.run(lambda: {*self._find_silent(silent)})
        if host_readings.has_nvidia(newest.reader):
            changed.update(_find_gpu_changes(self._read_gpus(), newest.gpus))
        # After the GPUs: reading them may write notes on Xid errors.
        self._stores.try_write()
        current = self._stores.read(newest.notes)
        used = (newest.notes, *(r.notes for r in newest.cards.values()))
        if "" in changed or not all(map(current.has_same_marks, used)):
            return None
        with self._lock:
            given_back = self._assigned - current.assigned
            self._assigned = current.assigned
        # Those that no server has any more may not be offered now.
        return frozenset(changed | given_back)

    def is_irrelevant(self, name: str) -> bool:
        """Return whether a function can't affect any device.

        It is no accelerator, and in no IOMMU group with one.
        """
        reader = self._newest.reader
        try:
            function = reader.function(name)
            group = () if function is None else function.group_members
            members = [reader.function(str(a)) for a in group]
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

    def _get_silent(
        self, reader: host_reader.HostReader
    ) -> Mapping[str, str | int]:
        """Return the values that change without a uevent, by path."""
        last, values = self._silent
        if last is not reader:
            values = reader.files.texts(*_SILENT)
            self._silent = reader, values
            self._models = self._list_models(reader)
        return values

    def _list_models(
        self, reader: host_reader.HostReader
    ) -> Mapping[str, str]:
        devices = self.state.devices
        offered = frozenset[str]().union(
            *map(host_readings.list_names, devices)
        )
        try:
            return presence.list_models(reader, offered)
        except errors.UnreadableError:
            return {}  # it is read again in each pass

    def _read_presence(self) -> presence.Presence:
        return bounded_calls.run(lambda: presence.read(self._source))

    def _find_rebound(self) -> frozenset[str]:
        """Return the functions with another driver, "" if some left or came.

        The next call does not return them again.
        """
        present = self._read_presence()
        with self._lock:
            earlier, self._presence = self._presence, present
        return present.find_changes(earlier or present)

    def _find_silent(self, values: Mapping[str, str | int]) -> Iterator[str]:
        """Yield the functions of the attributes that have changed."""
        files = fs.Files(self._source)
        for path, value in values.items():
            if files.read_text(path) != value:
                parts = reversed(path.split("/"))
                yield next(filter(pci.is_address, parts), "")
        for path, model_alias in self._models.items():
            text = files.read_text(path)
            # Another card has other functions: the host is read.
            if isinstance(text, str) and text != model_alias:
                yield ""


def _find_gpu_changes(
    gpus: Mapping[str, nvml_gpus.NvmlGpu],
    described: Mapping[str, nvml_gpus.NvmlGpu],
) -> Iterator[str]:
    """Yield the GPUs with other GPU instances; "" for other changes.

    Other changes of one GPU may affect the devices of others. Those of
    guests (boots, licences) change no device.
    """
    for address in gpus.keys() | described.keys():
        gpu, before = gpus.get(address), described.get(address)
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
