# SPDX-License-Identifier: Apache-2.0
"""Readings of one host, and its newest state.

A full reading calls all drivers for all cards. A reading of a card reads
some of its files again and, if one has changed, calls the card's driver.
Cards are read concurrently, each from the results of the newest reader.

Readings are numbered in the order in which they begin. A device keeps the
state of the highest-numbered reading, whichever ends last.
"""

import dataclasses
import functools
import itertools
import threading
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import note_stores, plugin, scan
from nova_accel.host import bounded_calls, nvml_gpus
from nova_accel.host.sysfs import (
    error_counters,
    fs,
    host_reader,
    repeated_reader,
)
from nova_accel.model import pci

_NVIDIA = "10de"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LaterReading:
    """Last reading of a device after the last full one.

    ``names`` are the functions of the device, ``notes`` what was applied.
    """

    number: int
    names: frozenset[str]
    notes: note_stores.DeviceNotes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """Results of the newest readings.

    ``host_scan`` is the last full reading, ``number`` its number, ``notes``
    the notes applied to it. ``reader`` and ``state`` include later readings of
    cards; ``cards`` are these readings by address of the device. ``gpus`` are
    NVML's answers with which each card was described.
    """

    reader: host_reader.HostReader
    state: model.HostState
    host_scan: scan.HostScan | None = None
    number: int = 0
    notes: note_stores.DeviceNotes = dataclasses.field(
        default_factory=note_stores.DeviceNotes
    )
    gpus: Mapping[str, nvml_gpus.NvmlGpu] = dataclasses.field(
        default_factory=dict
    )
    cards: Mapping[str, _LaterReading] = dataclasses.field(
        default_factory=dict
    )

    def get_notes(self, address: str) -> note_stores.DeviceNotes:
        """Return the notes with which a device was described."""
        reading = self.cards.get(address)
        return reading.notes if reading else self.notes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _CardRequest:
    """Devices of one card that are to be read again.

    ``names`` are their functions; ``plugins`` are the drivers to call, empty
    for all.
    """

    card: str
    devices: tuple[model.Device, ...]
    names: frozenset[str]
    stale: repeated_reader.Stale
    plugins: frozenset[str]

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset([device.address for device in self.devices])

    @property
    def depends_on_nvml(self) -> bool:
        """Return whether NVML may report a change that the kernel does not.

        A vGPU without a GPU instance of its own causes none.
        """
        return self.stale.is_whole or any(
            device.geometry.is_dynamic for device in self.devices
        )

    def is_described(
        self,
        newest: _Newest,
        gpus: Mapping[str, nvml_gpus.NvmlGpu],
        notes: note_stores.DeviceNotes,
    ) -> bool:
        """Return whether the state has the devices with these inputs.

        The files of the devices have not changed.
        """
        names = self.names
        return all(
            newest.state.device(address) is not None
            and notes.has_same_marks(before := newest.get_notes(address))
            and names.isdisjoint(before.assigned ^ notes.assigned)
            for address in self.addresses
        ) and _select(gpus, names) == _select(newest.gpus, names)

    def is_same_reading(self, newest: _Newest, current: _Newest) -> bool:
        """Return whether no device was read between these results."""
        return newest.number == current.number and all(
            newest.cards.get(address) is current.cards.get(address)
            for address in self.addresses
        )


class HostReadings:
    """Reader of one host. Thread-safe."""

    def __init__(
        self,
        source: fs.FileSource,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.DeviceRules,
        read_gpus: nvml_gpus.ReadGpus = dict,
        stores: note_stores.NoteStores | None = None,
    ) -> None:
        """Read files from ``source``; nothing is read yet.

        :param read_gpus: returns NVML's answers by PCI address.
        :param stores: notes to apply to each reading; None for no notes.
        """
        self._source = source
        self._drivers = drivers
        self._rules = rules
        self._call_nvml = read_gpus
        #: NVML's last answers, also those that changed nothing.
        self.gpus: Mapping[str, nvml_gpus.NvmlGpu] = {}
        self._stores = stores or note_stores.NoteStores()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        # Incomplete: no device may be taken for absent before the first
        # reading.
        self._newest = _Newest(
            reader=host_reader.HostReader(source=source),
            state=model.HostState(complete=False),
        )

    @property
    def state(self) -> model.HostState:
        """Return the newest state; without devices before the first."""
        return self._newest.state

    def check_notes(self) -> None:
        """Check that the notes on devices can be read.

        Call it before the first reading: later readings fall back on the
        last notes, but without any notes all devices would seem healthy.

        :raises UnreadableError: a store can't be read.
        """
        self._stores.check()

    def open_reader(self) -> host_reader.HostReader:
        """Return a fresh reader of the host.

        NVML is called only if the host has an NVIDIA GPU.
        """
        reader = host_reader.HostReader(source=self._source)
        if not has_nvidia(reader):
            return reader
        return reader.with_gpus(self._read_gpus())

    def read(self) -> model.HostState:
        """Return the host after a full reading.

        Cards that were read since it began stay as they are.
        """
        number = next(self._numbers)
        reader = self.open_reader()
        self._stores.try_write()
        notes = self._stores.read(self._newest.notes)
        host_scan = scan.read_host(
            reader, self._drivers, self._apply_notes(notes)
        )
        full = _Newest(
            reader=reader,
            state=self._mark(reader, host_scan.state, notes),
            host_scan=host_scan,
            number=number,
            notes=notes,
            gpus=reader.gpus,
        )
        with self._lock:
            if number > self._newest.number:
                self._newest = self._with_newer_cards(full)
        return self.state

    def _with_newer_cards(self, full: _Newest) -> _Newest:
        """Return a full reading with the cards that were read since."""
        newest = self._newest
        newer = {
            address: reading
            for address, reading in newest.cards.items()
            if reading.number > full.number
        }
        if not newer:
            return full
        names = frozenset[str]().union(*(r.names for r in newer.values()))
        reader = repeated_reader.RepeatedReader(full.reader, full.reader.gpus)
        reader.take_from(newest.reader, names)
        return dataclasses.replace(
            full,
            reader=reader,
            state=merge(full.state, newest.state, newer),
            gpus={**full.gpus, **_select(newest.gpus, names)},
            cards=newer,
        )

    def read_devices(
        self,
        devices: Iterable[model.Device],
        names: Iterable[str] = (),
        slots: Iterable[str] = (),
        traits: Iterable[str] = (),
    ) -> model.HostState:
        """Return the host after reading some devices again.

        The whole host is read if a card has a new device.

        :param devices: devices of the last reading.
        :param names: functions of these devices. If they are VFs, only these
            are read again, and what the free VFs of the card can hold now.
        :param slots: slots of these devices; only the partitions in them are
            read again, and what the cards can hold now.
        :param traits: of the profiles that are needed in these slots.
        """
        names, slots = frozenset(names), frozenset(slots)
        traits = frozenset(traits)
        cards: dict[str, list[model.Device]] = {}
        for device in devices:
            card = device.parent or device.address
            cards.setdefault(card, []).append(device)
        read_gpus = functools.cache(self._read_gpus)
        if self._newest.host_scan is None:
            return self.read()
        try:
            for card, parts in cards.items():
                request = _build_request(card, parts, names, slots, traits)
                if not self._read_card(request, read_gpus):
                    return self.read()
        except errors.UnreadableError:
            return self.read()  # the last reading has listed no device
        return self.state

    def _read_card(
        self, request: _CardRequest, read_gpus: nvml_gpus.ReadGpus
    ) -> bool:
        """Read a card, again if another reading has read it meanwhile.

        :returns: False if the host must be read: it was not read yet, or the
            card has a device that was not there before.
        """
        while True:
            newest, number = self._newest, next(self._numbers)
            if newest.host_scan is None:
                return False
            notes = self._stores.read(newest.notes)
            gpus = newest.reader.gpus
            if request.depends_on_nvml and has_nvidia(
                newest.reader, request.names
            ):
                gpus = read_gpus()
            reader, has_changed = bounded_calls.run(
                functools.partial(_read_files, newest.reader, gpus, request)
            )
            if not has_changed and request.is_described(newest, gpus, notes):
                return True
            state = self._describe(reader, request, notes, newest.host_scan)
            reading = _LaterReading(
                number=number, names=request.names, notes=notes
            )
            with self._lock:
                if request.is_same_reading(newest, self._newest):
                    self._newest = _with_card(
                        self._newest, newest, reader, request, state, reading
                    )
                    before = newest.state
                    return all(before.device(d.address) for d in state.devices)

    def _describe(
        self,
        reader: host_reader.HostReader,
        request: _CardRequest,
        notes: note_stores.DeviceNotes,
        host_scan: scan.HostScan,
    ) -> model.HostState:
        """Return the devices of a card.

        All drivers are called if those of the request do not describe each
        of its devices any more.
        """
        called = {
            name: driver
            for name, driver in self._drivers.items()
            if name in request.plugins
        }
        card, rules = reader.card_of(request.card), self._apply_notes(notes)
        state = model.HostState(complete=True)
        if called:
            state = scan.read_host(card, called, rules, host_scan).state
        described = state.unknown.union(d.address for d in state.devices)
        if state.complete and not request.addresses <= described:
            state = scan.read_host(card, self._drivers, rules, host_scan).state
        return self._mark(reader, state, notes, request.addresses)

    def _apply_notes(
        self, notes: note_stores.DeviceNotes
    ) -> policy.DeviceRules:
        # A device in use is not withdrawn if it turns out to have no reset.
        return dataclasses.replace(self._rules, assigned=notes.assigned)

    def _mark(
        self,
        reader: host_reader.HostReader,
        state: model.HostState,
        notes: note_stores.DeviceNotes,
        addresses: Collection[str] | None = None,
    ) -> model.HostState:
        """Return the host with fault and drain marks.

        :param addresses: devices that were just read; None for all.
        """
        read_faults = error_counters.find_faults(
            reader, state.devices, self._stores.baseline
        )
        state, healed = notes.mark(state, read_faults, addresses)
        self._stores.remove_faults(healed)
        return state

    def _read_gpus(self) -> Mapping[str, nvml_gpus.NvmlGpu]:
        self.gpus = gpus = self._call_nvml()
        return gpus


def _read_files(
    earlier: host_reader.HostReader,
    gpus: Mapping[str, nvml_gpus.NvmlGpu],
    request: _CardRequest,
) -> tuple[host_reader.HostReader, bool]:
    """Return a reader, and whether a file of the card has changed."""
    reader = repeated_reader.RepeatedReader(earlier, gpus)
    scope = reader.card_of(request.card).card_names
    return reader, reader.read_again(request.stale, scope)


def _with_card(
    current: _Newest,
    newest: _Newest,
    reader: host_reader.HostReader,
    request: _CardRequest,
    state: model.HostState,
    reading: _LaterReading,
) -> _Newest:
    """Return the current results with a card that was read again.

    :param newest: the results with which the reading has begun.
    """
    if current.reader is not newest.reader:
        has_new_gpus = reader.gpus is not newest.reader.gpus
        gpus = reader.gpus if has_new_gpus else current.reader.gpus
        combined = repeated_reader.RepeatedReader(current.reader, gpus)
        combined.take_from(reader, reading.names)
        reader = combined
    others = current.gpus.keys() - reading.names
    return dataclasses.replace(
        current,
        reader=reader,
        state=merge(current.state, state, request.addresses),
        gpus={
            **_select(current.gpus, others),
            **_select(reader.gpus, reading.names),
        },
        cards={
            **current.cards,
            **dict.fromkeys(request.addresses, reading),
        },
    )


def _select(
    gpus: Mapping[str, nvml_gpus.NvmlGpu], names: Collection[str]
) -> dict[str, nvml_gpus.NvmlGpu]:
    return {name: gpu for name, gpu in gpus.items() if name in names}


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


def _build_request(
    card: str,
    devices: Collection[model.Device],
    names: frozenset[str],
    slots: frozenset[str],
    traits: frozenset[str],
) -> _CardRequest:
    """Return a request for devices of a card; see ``read_devices``."""
    every = frozenset[str]().union(*map(list_names, devices))
    stale = _list_stale(devices, every, names, slots)
    if stale.parents and traits:
        profiles = [
            p for d in devices for p in d.profiles if p.trait in traits
        ]
        type_ids = [
            p.handles.get(n, "") for p in profiles for n in stale.parents
        ]
        stale = dataclasses.replace(stale, types=frozenset(type_ids))
    plugins = [device.plugin for device in devices]
    return _CardRequest(
        card=card,
        devices=tuple(devices),
        names=every,
        stale=stale,
        plugins=frozenset(plugins if slots and not stale.is_whole else ()),
    )


def _list_stale(
    devices: Collection[model.Device],
    every: frozenset[str],
    names: frozenset[str],
    slots: frozenset[str],
) -> repeated_reader.Stale:
    """Return the files to read again for the devices of one card.

    :param every: the names of all their functions.
    """
    vfs = [_list_vfs(device, every) for device in devices]
    named = names & every
    if named and named <= frozenset().union(*vfs):
        return repeated_reader.Stale(functions=named)
    partial = [
        _list_partitions(device, device_vfs, slots)
        for device, device_vfs in zip(devices, vfs, strict=True)
    ]
    if named or not any(stale.names for stale in partial):
        return repeated_reader.Stale(functions=every, is_whole=True)
    return repeated_reader.Stale(
        functions=frozenset().union(*[s.functions for s in partial]),
        typed_vfs=frozenset().union(*[s.typed_vfs for s in partial]),
        parents=frozenset().union(*[s.parents for s in partial]),
    )


def _list_partitions(
    device: model.Device, vfs: frozenset[str], slots: frozenset[str]
) -> repeated_reader.Stale:
    """Return from where the partitions in some slots are read.

    Nothing if all of the device has to be read.

    In mixed mode sysfs does not have the places of mdevs: they change what
    the card can hold of any type, so the whole slots are read, and with them
    all types of the free ones. A card without VFs is read by its mdevs if
    its layout shows what it can hold beside them.

    :param vfs: see ``_list_vfs``.
    """
    if device.technology == "vendor-vfio":
        return repeated_reader.Stale(typed_vfs=slots & vfs)
    layout = device.geometry.layout
    if device.technology != "mdev" or layout is model.Layout.MIXED:
        return repeated_reader.Stale(functions=slots & vfs)
    if (
        slots
        and not vfs
        and layout is model.Layout.EQUAL
        and all([profile.limit for profile in device.profiles])
    ):
        return repeated_reader.Stale(parents=frozenset({device.address}))
    return repeated_reader.Stale(parents=slots & vfs)


def _list_vfs(device: model.Device, every: frozenset[str]) -> frozenset[str]:
    """Return the VFs of a device that can be read without the others."""
    if device.region is not None or device.address in device.slots:
        return frozenset()
    return every.intersection(device.slots)


def has_nvidia(
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
