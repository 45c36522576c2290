# SPDX-License-Identifier: Apache-2.0
"""Devices, profiles, partitions, slots and claims."""

import dataclasses
import enum
from collections.abc import Mapping

# A server's allocations: amounts by provider uuid and resource class.
Booked = Mapping[str, Mapping[str, int]]
# The profile of a partition that can't be read.
UNKNOWN = "unknown"

# Functions that are given to servers whole: one that a server holds shows no
# partition.
UNDIVIDED = frozenset({"passthrough", "vf", "fpga"})
# A claim's consumer, provider and slot.
ClaimKey = tuple[str, str, str]
# The same, and a resource class.
ClassKey = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be read or used, and why."""

    where: str
    reason: str


class Layout(enum.Enum):
    """What decides which partitions a device can hold at once.

    ANY: its counters and its own word, nothing else (GVT-g, plain VFs).
    EQUAL: all partitions have one size (NVIDIA's equal-size mode).
    MIXED: any sizes, each at a place of its own (NVIDIA's mixed-size or
    heterogeneous mode). MIG: partitions stand inside GPU instances.
    """

    ANY = "any"
    EQUAL = "equal"
    MIXED = "mixed"
    MIG = "mig"


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Span:
    """A place on a device: ``size`` units of its region from ``start``.

    The unit is the technology's: NVIDIA's placement ids count GiB of
    framebuffer, MIG counts memory slices.
    """

    start: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKind:
    """A kind of GPU instance that a device in MIG mode can hold.

    ``name`` is NVIDIA's (``1g.5gb``), ``size`` what it takes in memory
    slices and ``slices`` in compute slices, ``starts`` the memory slices
    at which it may begin, ``limit`` how many there may be at once.
    """

    name: str
    size: int
    slices: int
    starts: tuple[int, ...]
    limit: int | None = None

    @property
    def has_media_engines(self) -> bool:
        """Return whether an instance takes the GPU's media engines.

        A GPU has one JPEG and one OFA engine, so of all kinds named
        ``+me`` together there is one instance at most (NVIDIA's MIG user
        guide, supported profiles of A30 and A100).
        """
        return "+me" in self.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance that exists.

    ``span`` is None where its place is not known. ``handle`` is its id.
    """

    kind: str
    handle: str
    span: Span | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How partitions share a device; the default leaves it to counters.

    ``region`` is the length of the region that MIXED spans divide, or the
    memory slices of a device in MIG mode. ``limit`` is how many partitions
    there may be at once, None without limit. ``kinds`` and ``instances``
    are the GPU instances that can be, and that are; ``is_dynamic`` tells
    whether instances may be made and unmade for claims.
    """

    layout: Layout = Layout.ANY
    region: int = 0
    limit: int | None = None
    kinds: tuple[InstanceKind, ...] = ()
    instances: tuple[Instance, ...] = ()
    is_dynamic: bool = False

    def kind(self, name: str) -> InstanceKind | None:
        """Return the kind of that name, or None."""
        return next((k for k in self.kinds if k.name == name), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What can be cut from a device.

    ``name`` is the vendor's own name (``GRID T4-4Q``) or, where names are
    no identity, the type's (``mtty-2``). ``charges`` is what one partition
    takes of the device's counters, by resource class. ``available`` is how
    many more the device can make in its present state. ``handles`` tells,
    for each parent that can make it, the id by which that parent knows it.
    ``device_api`` is the mdev device API, empty for other technologies.

    The rest is what a device's geometry reckons with: ``size`` is the
    framebuffer in MiB, of which EQUAL allows one at a time; ``limit`` is
    how many there may be at once (None without limit, in all instances
    together under MIG); ``span`` and ``starts`` are the length and the
    allowed beginnings under MIXED; ``instance`` names the kind of GPU
    instance that it stands in and ``per_instance`` how many fit into one.
    """

    name: str
    trait: str
    charges: Mapping[str, int]
    available: int
    handles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device_api: str = ""
    size: int = 0
    limit: int | None = None
    span: int = 0
    starts: tuple[int, ...] = ()
    instance: str = ""
    per_instance: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What has been cut: a profile on a parent, under a handle.

    ``handle`` is the mdev's uuid or the function's address. ``in_use`` is
    False only when it is known that nothing holds the partition. ``start``
    is where it begins under a MIXED layout, ``instance`` the handle of the
    GPU instance it stands in; each None where it is not known.
    ``is_nameless`` is True where the name of its type is not known:
    ``profile`` is made up of the type's number then, or is UNKNOWN.
    """

    profile: str
    parent: str
    handle: str
    in_use: bool = True
    start: int | None = None
    instance: str | None = None
    is_nameless: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bitstream:
    """What can be loaded into an FPGA region, checked, on this host.

    ``name`` is the id of its Glance image, or the path of the operator's
    own file. ``function`` is what a region holds that it was loaded into,
    ``interface`` what that region must have; both as ``names.fpga_id``
    spells them. ``path`` is where the file lies, ``sha512`` the digest of
    all of it in hexadecimal, ``size`` its length in bytes. ``vendor`` is
    whose cards it is for, as ``names.vendor_name`` tells.
    """

    name: str
    vendor: str
    path: str
    function: str
    interface: str
    sha512: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of an FPGA whose function can change, and what it is now.

    ``card`` is the address of the function that manages it (of Intel's
    cards the one with the FME, of AMD's the management function),
    ``number`` which of the card's regions it is. ``function`` is the id
    of what is loaded: empty for nothing, None where it can't be told,
    because a guest has the card for example. ``interfaces`` are those
    that a bitstream may be made for. ``tool`` names the vendor's tool
    that loads one, empty for the kernel's own interface.
    ``driver`` is the host's driver under which the function can be read.
    ``dependents`` are functions, besides those that go to the guest, that
    work only while the function stays. ``blank`` is the path of what is
    loaded after each server, empty to keep the function.
    """

    card: str
    number: int
    function: str | None
    interfaces: tuple[str, ...] = ()
    is_programmable: bool = False
    tool: str = ""
    driver: str = ""
    dependents: tuple[str, ...] = ()
    blank: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a device is not to be used until somebody has looked at it.

    ``address`` is the device's, ``function`` what its region held when it
    failed (see ``Region.function``), ``when`` the time in ISO 8601.
    """

    address: str
    reason: str
    function: str | None = None
    when: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """That a device takes no new server: its operator says so.

    ``address`` is the device's, ``when`` the time in ISO 8601.
    """

    address: str
    reason: str
    when: str = ""


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
    ``geometry`` tells how its partitions share it. ``is_managed`` tells
    whether libvirt binds and unbinds the functions given to guests.
    ``vgpu_params`` is set on each partition that is made.

    ``parent`` is the address of the device that this one is a part of,
    as a region of its card; ``region`` is set on such parts. ``fault``
    tells why nothing of it may be used now, empty for a healthy device;
    ``drain`` why its operator gives it to no more servers;
    ``marks_unknown`` why its fault and drain marks can't be read, empty
    where they are known. Each of the three keeps it from new servers.
    ``unread`` are prefixes of traits of which nothing can be told now:
    those that were told before stay.
    A device without counters is described, and not offered.
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
    geometry: Geometry = Geometry()
    is_managed: bool = True
    vgpu_params: str = ""
    parent: str = ""
    region: Region | None = None
    fault: str = ""
    drain: str = ""
    marks_unknown: str = ""
    unread: tuple[str, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Return whether the device takes no new server."""
        return bool(self.fault or self.drain or self.marks_unknown)

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name, or None."""
        return next((p for p in self.profiles if p.name == name), None)

    def charges(self, name: str) -> Mapping[str, int]:
        """Return what a profile takes, by resource class.

        Of a profile that the device does not have, only a slot is known.
        """
        profile = self.profile(name)
        return profile.charges if profile else {self.resource_class: 1}


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
    plans its actions. ``start`` is the place chosen for it under a MIXED
    layout. ``instance`` names the kind of GPU instance it needs;
    ``instance_start`` is where that must be made first, None when one with
    room exists; ``owns_instance`` tells whether the instance goes when the
    last partition in it does. ``region`` is the FPGA region that the claim
    is of, ``functions`` the traits of the functions that its flavor wants
    to find there; ``image`` names the Glance image that the flavor wants
    in it, ``bitstream`` what is to be loaded, None for nothing;
    ``is_forced`` also where its function is there: as another build.
    ``is_allocated`` is False where Placement has no allocation for it, or
    only a part of it: ``unallocated`` has the amounts that are missing, by
    resource class, and is empty where all are.
    ``is_backed`` is False where Nova has no server and no migration for it
    either.
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
    is_managed: bool = True
    vgpu_params: str = ""
    start: int | None = None
    instance: str = ""
    instance_start: int | None = None
    owns_instance: bool = False
    region: Region | None = None
    functions: frozenset[str] = frozenset()
    image: str = ""
    bitstream: Bitstream | None = None
    is_forced: bool = False
    state: ClaimState = ClaimState.PLANNED
    is_allocated: bool = True
    unallocated: tuple[tuple[str, int], ...] = ()
    is_backed: bool = True

    @property
    def key(self) -> ClaimKey:
        """Return what identifies the claim while its consumer holds it."""
        return self.consumer, self.provider, self.slot
