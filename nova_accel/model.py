# SPDX-License-Identifier: Apache-2.0
"""The words of the house: devices, profiles, partitions and claims."""

import dataclasses
import enum
from collections.abc import Mapping

# A server's allocations: amounts by provider uuid and resource class.
Booked = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be read or used, and why."""

    where: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What can be cut from a device.

    ``name`` is the vendor's own name (``GRID T4-4Q``) or, where names are
    no identity, the type's (``mtty-2``). ``charges`` is what one partition
    takes of the device's counters, by resource class. ``available`` is how
    many more the device can make in its present state. ``handles`` tells,
    for each parent that can make it, the id by which that parent knows it.
    ``device_api`` is the mdev device API, empty for other technologies.
    """

    name: str
    trait: str
    charges: Mapping[str, int]
    available: int
    handles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device_api: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What has been cut: a profile on a parent, under a handle.

    ``handle`` is the mdev's uuid or the function's address. ``in_use`` is
    False only when it is known that nothing holds the partition.
    """

    profile: str
    parent: str
    handle: str
    in_use: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical device.

    ``address`` is its PCI address or, for a device off the PCI bus, its
    name in sysfs. ``plugin`` names the vendor driver that described it and
    ``driver`` the kernel driver bound to it. ``vendor`` and ``model`` are
    for people; ``vendor_id`` and ``product_id`` for programs.
    ``resource_class`` is the class its slots are counted in and
    ``counters`` the totals of every class it is counted by. ``slots`` are
    the identifiers a claim may hold, enough for any state of the device.
    ``members`` are the functions that travel together with it.
    """

    address: str
    plugin: str
    technology: str
    vendor: str
    model: str
    resource_class: str
    counters: Mapping[str, int]
    slots: tuple[str, ...]
    vendor_id: str = ""
    product_id: str = ""
    driver: str | None = None
    numa_node: int | None = None
    profiles: tuple[Profile, ...] = ()
    partitions: tuple[Partition, ...] = ()
    traits: frozenset[str] = frozenset()
    members: tuple[str, ...] = ()

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name, or None."""
        return next((p for p in self.profiles if p.name == name), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host as it was read: devices, problems, and what stayed unknown.

    ``unknown`` holds the addresses of devices that exist but could not be
    read at all: they are neither present nor absent. ``complete`` is
    False when a whole technology could not be read: then nothing that is
    not among ``devices`` may be taken for absent.
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown: frozenset[str] = frozenset()
    complete: bool = True

    def device(self, address: str) -> Device | None:
        """Return the device at an address, or None."""
        return next((d for d in self.devices if d.address == address), None)


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Slot:
    """What Nova handed to a consumer: an identifier of a provider."""

    provider: str
    resource_class: str
    identifier: str


class ClaimState(enum.Enum):
    """How far a claim has come."""

    PLANNED = "planned"
    MADE = "made"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A partition reserved for a consumer.

    ``slot`` is the identifier Nova handed out on provider ``provider``;
    ``parent`` is the mdev parent or function the partition is cut from,
    and ``handle`` the id the partition has, or will have. ``type_id`` is
    the id by which the parent knows the profile (``nvidia-222``), empty
    where a technology has none. ``plugin`` names the vendor driver that
    plans its actions.
    """

    consumer: str
    provider: str
    device: str
    profile: str
    slot: str
    parent: str
    handle: str
    technology: str
    plugin: str = ""
    type_id: str = ""
    device_api: str = ""
    members: tuple[str, ...] = ()
    state: ClaimState = ClaimState.PLANNED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateMdev:
    """Make a mediated device; undone by RemoveMdev."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> "RemoveMdev":
        """Return the action that takes this one back."""
        return RemoveMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"create mdev {self.uuid} ({self.type_id}) on {self.parent}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMdev:
    """Remove a mediated device; undone by CreateMdev."""

    parent: str
    type_id: str
    uuid: str

    def undo(self) -> CreateMdev:
        """Return the action that takes this one back."""
        return CreateMdev(
            parent=self.parent, type_id=self.type_id, uuid=self.uuid
        )

    def __str__(self) -> str:
        """Return the action in the words of the log."""
        return f"remove mdev {self.uuid} ({self.type_id}) from {self.parent}"


Action = CreateMdev | RemoveMdev
