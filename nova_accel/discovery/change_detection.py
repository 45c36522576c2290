# SPDX-License-Identifier: Apache-2.0
"""Change detection: which devices of a host must be read again.

A whole reading looks at every file once. What can have changed since is
told by three things: the kernel counts the uevents it sends, vGPU types of
VFs are written without one, and so are changes of MIG, which NVML tells.
Where none of them moved, nothing is read.
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
from nova_accel.host.sysfs import error_counters, fs, host_reader, uevents
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
# A whole reading at least so often: nothing tells of GPU instances made
# with the vendor's tool where NVML is missing. As often as Nova's own
# audits of a host's resources run at most (update_resources_interval).
WHOLE_EVERY_S = 300

_NVIDIA = "10de"
# What problems of whole drivers begin with.
_DRIVER = "driver"

ReadGpus = Callable[[], Mapping[str, gpu_reader.NvmlGpu]]
Note_co = TypeVar("Note_co", covariant=True)


class NoteReader(Protocol[Note_co]):
    """Notes on devices, as they are kept somewhere."""

    def read(self) -> Mapping[str, Note_co]:
        """Return the notes by address, or raise UnreadableError."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _NotedConditions:
    """What is written down on a host's devices, beside what they show.

    None for notes that could never be read so far. ``error`` is why notes
    can't be read now, empty if they can.
    """

    faulted: conditions.Faults | None = None
    drained: conditions.Drains | None = None
    seen_to: Mapping[str, int] = dataclasses.field(default_factory=dict)
    error: str = ""


class ChangeDetector:
    """Reads one host, again and again. Thread-safe."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.Policy,
        read_gpus: ReadGpus = dict,
        faulted: faults.FaultNotes | None = None,
        drained: drains.DrainNotes | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param faulted: the notes on devices that failed.
        :param drained: those on devices that their operator drains.
        """
        self._source = source
        self._drivers = drivers
        self._rules = rules
        self._read_gpus = read_gpus
        self._faulted = faulted
        self._drained = drained
        #: The kernel's errors that somebody has seen to.
        self.seen_to: error_baseline.ErrorBaseline | None = None
        self._noted = _NotedConditions()
        self._guard = threading.Lock()
        self._last: host_reader.HostReader | None = None
        self._silent: Mapping[str, str | int] = {}
        self._mark: str | None = None
        self._when = 0.0

    def check_notes(self) -> None:
        """See that the notes on devices can be read.

        Before the first reading: later ones fall back on what is known,
        but whoever knows nothing yet would take the devices for healthy.

        :raises UnreadableError: they can't.
        """
        for kept in (self._faulted, self._drained):
            if kept is not None:
                kept.read()

    def look(self) -> host_reader.HostReader:
        """Return a fresh reader of the host.

        NVML is asked only where there is a GPU of NVIDIA's.
        """
        reader = host_reader.HostReader(source=self._source)
        if _has_nvidia(reader):
            reader.gpus = self._read_gpus()
        return reader

    def read(self) -> model.HostState:
        """Return the whole host, everything read anew."""
        when, mark = time.monotonic(), uevents.read_count(self._source)
        reader = self.look()
        noted = self._read_notes()
        state = self._describe(reader, noted)
        silent = {
            path: found
            for name in _SILENT
            for path, found in reader.files.texts(name).items()
        }
        with self._guard:
            self._last, self._silent = reader, silent
            self._mark, self._when = mark, when
            self._noted = noted
        return state

    def read_changed(self) -> model.HostState | None:
        """Return the whole host, or None if nothing can have changed."""
        with self._guard:
            last, silent = self._last, self._silent
            mark, when = self._mark, self._when
            noted = self._noted
        if (
            last is None
            or mark is None
            or time.monotonic() - when > WHOLE_EVERY_S
            or uevents.read_count(self._source) != mark
            or self._has_silent_change(silent)
            or error_counters.is_changed(last)
            or (_has_nvidia(last) and self._read_gpus() != last.gpus)
            # Behind the GPUs: who asks them notes what failed there.
            or self._read_notes() != noted
        ):
            return self.read()
        return None

    def read_devices(self, devices: Iterable[model.Device]) -> model.HostState:
        """Return the host, of which only some devices were read anew.

        What the others look like is as old as the last whole reading:
        only those asked for may be taken from the result.
        """
        with self._guard:
            last = self._last
        if last is None:
            return self.read()
        devices = tuple(devices)
        names = {name for device in devices for name in _names(device)}
        is_asked = _has_nvidia(last, names)
        reader = last.look_again(
            names, self._read_gpus() if is_asked else last.gpus
        )
        seen = {device.address for device in devices}
        noted = self._read_notes()
        with self._guard:
            if noted != self._noted:
                self._mark = None  # the next look is at everything
        return self._describe(reader, noted, seen)

    def _describe(
        self,
        reader: host_reader.HostReader,
        noted: _NotedConditions,
        seen: Collection[str] | None = None,
    ) -> model.HostState:
        state = scan.read(reader, self._drivers, self._rules)
        ill = error_counters.find(reader, state.devices, self.seen_to)
        marked, healed = conditions.mark(
            conditions.ill_marks(state, ill), noted.faulted or {}, seen
        )
        if healed and self._faulted is not None:
            # What can't be healed is tried the next time.
            with contextlib.suppress(OSError, errors.UnreadableError):
                self._faulted.heal(healed)
                LOG.info("healed: %s", ", ".join(sorted(healed)))
        is_first = noted.faulted is None or noted.drained is None
        marked = conditions.drain_marks(marked, noted.drained or {})
        if noted.error:
            marked = conditions.unknown_marks(marked, noted.error, is_first)
        return marked

    def _read_notes(self) -> _NotedConditions:
        """Return the notes; the last ones known if they can't be read."""
        with self._guard:
            last = self._noted
        faulted, faulted_error = _or_last(self._faulted, last.faulted)
        drained, drained_error = _or_last(self._drained, last.drained)
        return _NotedConditions(
            faulted=faulted,
            drained=drained,
            seen_to=self.seen_to.read() if self.seen_to else {},
            error=faulted_error or drained_error,
        )

    def _has_silent_change(self, seen: Mapping[str, str | int]) -> bool:
        files = fs.Files(self._source)
        return any(_content(files, path) != was for path, was in seen.items())


def _or_last(
    kept: NoteReader[Note_co] | None, last: Mapping[str, Note_co] | None
) -> tuple[Mapping[str, Note_co] | None, str]:
    """Return notes and no error, or the last notes and the error."""
    if kept is None:
        return {}, ""
    try:
        return kept.read(), ""
    except errors.UnreadableError as error:
        return last, str(error)


def merge(
    host: model.HostState, newer: model.HostState, addresses: Iterable[str]
) -> model.HostState:
    """Return a host, but some of its devices as a newer reading has them.

    :param addresses: of those devices; one that the newer reading does
        not have is gone, or unknown if that reading is not complete.
    """
    wanted = frozenset(addresses)
    if not wanted:
        return host
    kept = [d for d in host.devices if d.address not in wanted]
    taken = [d for d in newer.devices if d.address in wanted]
    unread = wanted - {device.address for device in taken}
    if newer.complete:
        unread = frozenset()
    theirs = wanted | {
        name
        for device in (*host.devices, *taken)
        if device.address in wanted
        for name in _names(device)
    }
    return model.HostState(
        devices=tuple(sorted((*kept, *taken), key=scan.place)),
        problems=tuple(
            sorted(
                {
                    p
                    for p in host.problems
                    if host_reader.subject(p) not in theirs
                }
                | {
                    p
                    for p in newer.problems
                    if host_reader.subject(p) in theirs
                    or (unread and host_reader.subject(p) == _DRIVER)
                },
                key=lambda p: (p.where, p.reason),
            )
        ),
        unknown=(host.unknown - theirs) | (newer.unknown & theirs) | unread,
        complete=host.complete,
    )


def _has_nvidia(
    reader: host_reader.HostReader, names: Iterable[str] | None = None
) -> bool:
    """Return whether a GPU of NVIDIA's is there, or is among some names."""
    try:
        functions = reader.functions()
    except errors.UnreadableError:
        return False  # nothing would be described
    wanted = None if names is None else frozenset(names)
    return any(
        function.vendor == _NVIDIA
        and function.is_display
        and (wanted is None or str(function.address) in wanted)
        for function in functions
    )


def _names(device: model.Device) -> tuple[str, ...]:
    """Return the names under which the kernel has parts of a device."""
    return (
        device.parent or device.address,
        *device.members,
        *filter(pci.is_address, device.slots),
    )


def _content(files: fs.Files, path: str) -> str | int:
    try:
        return files.text(path)
    except errors.UnreadableError as error:
        return error.number
