# SPDX-License-Identifier: Apache-2.0
"""Readings of one host, each as small as it may be.

A whole reading looks at every file once. What can have changed since is
told by three things: the kernel counts the uevents it sends, vGPU types of
VFs are written without one, and so are changes of MIG, which NVML tells.
Where none of them moved, nothing is read.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_accel import (
    discovery,
    errors,
    faults,
    model,
    pci,
    plugin,
    policy,
)
from nova_accel.host import fs, nvml, quarantine, sysfs, uevents

LOG = logging.getLogger(__name__)

# Attributes that change without a uevent.
_SILENT = (
    "current_vgpu_type",
    "afu_id",
    "xclbinuuid",
    "qat/state",
    "qat/cfg_services",
)
# A whole reading at least so often: nothing tells of GPU instances made
# with the vendor's tool where NVML is missing. As often as Nova's own
# audits of a host's resources run at most (update_resources_interval).
WHOLE_EVERY_S = 300

_NVIDIA = "10de"
# What problems of whole drivers begin with.
_DRIVER = "driver"

ReadGpus = Callable[[], Mapping[str, nvml.GpuFacts]]


class Survey:
    """Reads one host, again and again. Thread-safe."""

    def __init__(
        self,
        source: fs.Source,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.Policy,
        read_gpus: ReadGpus = dict,
        faulted: quarantine.Quarantine | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param faulted: the notes on devices that failed.
        """
        self._source = source
        self._drivers = drivers
        self._rules = rules
        self._read_gpus = read_gpus
        self._faulted = faulted
        self._faults: faults.Faults = {}
        self._guard = threading.Lock()
        self._last: sysfs.HostReader | None = None
        self._silent: Mapping[str, str | int] = {}
        self._mark: str | None = None
        self._when = 0.0

    def look(self) -> sysfs.HostReader:
        """Return a fresh reader of the host.

        NVML is asked only where there is a GPU of NVIDIA's.
        """
        reader = sysfs.HostReader(source=self._source)
        if _has_nvidia(reader):
            reader.gpus = self._read_gpus()
        return reader

    def read(self) -> model.HostState:
        """Return the whole host, everything read anew."""
        when, mark = time.monotonic(), uevents.read_count(self._source)
        reader = self.look()
        noted = self._read_faults()
        state = self._describe(reader, noted)
        silent = {
            path: found
            for name in _SILENT
            for path, found in reader.files.texts(name).items()
        }
        with self._guard:
            self._last, self._silent = reader, silent
            self._mark, self._when = mark, when
            self._faults = noted
        return state

    def read_changed(self) -> model.HostState | None:
        """Return the whole host, or None if nothing can have changed."""
        with self._guard:
            last, silent = self._last, self._silent
            mark, when = self._mark, self._when
            noted = self._faults
        if (
            last is None
            or mark is None
            or self._read_faults() != noted
            or time.monotonic() - when > WHOLE_EVERY_S
            or uevents.read_count(self._source) != mark
            or self._has_silent_change(silent)
            or (_has_nvidia(last) and self._read_gpus() != last.gpus)
        ):
            return self.read()
        return None

    def read_devices(
        self, devices: Iterable[model.Device]
    ) -> model.HostState:
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
        noted = self._read_faults()
        with self._guard:
            if noted != self._faults:
                self._mark = None  # the next look is at everything
        return self._describe(reader, noted, seen)

    def _describe(
        self,
        reader: sysfs.HostReader,
        noted: faults.Faults,
        seen: Collection[str] | None = None,
    ) -> model.HostState:
        state = discovery.read(reader, self._drivers, self._rules)
        marked, healed = faults.mark(state, noted, seen)
        if healed and self._faulted is not None:
            with contextlib.suppress(OSError):  # and tried the next time
                self._faulted.heal(healed)
                LOG.info("healed: %s", ", ".join(sorted(healed)))
        return marked

    def _read_faults(self) -> faults.Faults:
        """Return the faults; the last ones known if they can't be read."""
        if self._faulted is None:
            return {}
        try:
            return self._faulted.read()
        except errors.UnreadableError as error:
            LOG.warning("%s; devices stay set aside", error)
            with self._guard:
                return self._faults

    def _has_silent_change(self, seen: Mapping[str, str | int]) -> bool:
        files = fs.Files(self._source)
        return any(_content(files, path) != was for path, was in seen.items())


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
        devices=tuple(sorted((*kept, *taken), key=discovery.place)),
        problems=tuple(
            sorted(
                {p for p in host.problems if sysfs.subject(p) not in theirs}
                | {
                    p
                    for p in newer.problems
                    if sysfs.subject(p) in theirs
                    or (unread and sysfs.subject(p) == _DRIVER)
                },
                key=lambda p: (p.where, p.reason),
            )
        ),
        unknown=(host.unknown - theirs) | (newer.unknown & theirs) | unread,
        complete=host.complete,
    )


def _has_nvidia(
    reader: sysfs.HostReader, names: Iterable[str] | None = None
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
