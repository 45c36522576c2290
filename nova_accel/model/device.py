# SPDX-License-Identifier: Apache-2.0
"""Devices, profiles, partitions, slots and claims.

All types are immutable values. A Device has Profiles that it can make and
Partitions that exist; a Claim is a Partition reserved for a consumer.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping

# Allocations of a server: amounts by provider UUID and resource class.
Allocations = Mapping[str, Mapping[str, int]]
# The profile of a partition that can't be read.
UNKNOWN = "unknown"

# Technologies that assign whole functions: no partition of them exists while
# a server uses one.
UNDIVIDED = frozenset({"passthrough", "vf", "fpga"})
# Technologies that assign whole functions.
_WHOLE_FUNCTIONS = UNDIVIDED - {"fpga"}
# Technologies of functions that keep their identity: a note below state_dir
# names the last server of each until it was seen clean.
NOTED = UNDIVIDED | {"vendor-vfio"}
# A claim's consumer, provider and slot.
ClaimKey = tuple[str, str, str]
# A ClaimKey with the resource class.
ClassKey = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Part of a host or of its configuration that is not usable.

    ``where`` is the device, file or option with the problem, as users know
    it. ``address`` is the address of the device, or the name of the mdev or
    mdev parent, that has the problem; empty where the problem is not of one
    device.
    """

    where: str
    reason: str
    address: str = ""

    @classmethod
    def of_device(cls, address: object, reason: str) -> "Problem":
        """Return the problem of a device with a PCI or other address."""
        return cls(where=str(address), reason=reason, address=str(address))


class Layout(enum.Enum):
    """Rule for the partitions that a device can have at the same time.

    ANY: limited by ``Profile.available`` and counters only (GVT-g, plain
    VFs). EQUAL: all partitions have one size (NVIDIA's equal-size mode).
    MIXED: any sizes, each in its own span (NVIDIA's mixed-size or
    heterogeneous mode). MIG: partitions are inside GPU instances.
    """

    ANY = "any"
    EQUAL = "equal"
    MIXED = "mixed"
    MIG = "mig"


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Span:
    """Part of a device: ``size`` units of its region from ``start``.

    The unit depends on the technology: NVIDIA's placement ids count GiB of
    framebuffer, MIG counts memory slices.
    """

    start: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKind:
    """Profile of a GPU instance that a device in MIG mode supports.

    ``name`` is NVIDIA's (``1g.5gb``), ``size`` is in memory slices and
    ``slices`` in compute slices, ``starts`` are the memory slices at which
    an instance may begin, ``limit`` is the maximal number of instances.
    """

    name: str
    size: int
    slices: int
    starts: tuple[int, ...]
    limit: int | None = None

    @property
    def has_media_engines(self) -> bool:
        """Return whether an instance uses the GPU's media engines.

        A GPU has one JPEG and one OFA engine, so it has at most one
        instance of all kinds named ``+me`` (NVIDIA's MIG user guide,
        supported profiles of A30 and A100).
        """
        return "+me" in self.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance that exists.

    ``handle`` is its id; ``span`` is None where it could not be read.
    """

    kind: str
    handle: str
    span: Span | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Rules by which partitions share a device; by default only counters.

    ``region`` is the length of the region that MIXED spans divide, or the
    number of memory slices of a device in MIG mode. ``limit`` is the
    maximal number of partitions, None without limit. ``kinds`` are the
    supported GPU instance profiles, ``instances`` the existing instances;
    ``is_dynamic`` is True where claims create and destroy instances.
    """

    layout: Layout = Layout.ANY
    region: int = 0
    limit: int | None = None
    kinds: tuple[InstanceKind, ...] = ()
    instances: tuple[Instance, ...] = ()
    is_dynamic: bool = False

    def kind(self, name: str) -> InstanceKind | None:
        return next((k for k in self.kinds if k.name == name), None)

    def instance(self, handle: str | None) -> Instance | None:
        return next((i for i in self.instances if i.handle == handle), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Kind of partition that a device can make.

    ``name`` is the vendor's name (``GRID T4-4Q``) or, where that is not
    unique, the type's (``mtty-2``). ``charges`` are the amounts of the
    device's counters that one partition takes, by resource class.
    ``available`` is the number of further partitions that the device can
    make in its present state. ``handles`` has the type id of each parent
    that can make one. ``device_api`` is the mdev device API, empty for
    other technologies.

    The other fields are for the geometry: ``size`` is the framebuffer in
    MiB (EQUAL allows one size at a time); ``limit`` is the maximal number
    of partitions (None without limit; under MIG in all instances together);
    ``span`` and ``starts`` are the length and the valid start positions
    under MIXED; ``instance`` names the GPU instance kind that contains the
    partition, ``per_instance`` is the number that fits into one instance.
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
    """A partition that exists: an instance of a profile on a parent.

    ``handle`` is the mdev's UUID or the function's address. ``in_use`` is
    False only if nothing has the partition open. ``start`` is its position
    under a MIXED layout, ``instance`` the handle of its GPU instance; each
    is None where it could not be read. ``is_nameless`` is True where the
    name of its type could not be read: ``profile`` is derived from the
    type's number then, or is UNKNOWN.
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
    """A verified file on this host that can be loaded into an FPGA region.

    ``name`` is the id of its Glance image, or the path of the operator's
    own file. ``function`` is the id of the function that it implements,
    ``interface`` the interface id that a region must have; both as
    ``names.normalize_fpga_id`` spells them. ``path`` is the file,
    ``sha512`` its digest in hexadecimal, ``size`` its length in bytes.
    ``vendor`` is the vendor of the cards, see ``names.vendor_name``.
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
    """Reconfigurable region of an FPGA and its present function.

    ``card`` is the address of the function that manages it (the one with
    the FME on Intel's cards, the management function on AMD's),
    ``number`` its number on the card. ``function`` is the id of the loaded
    function: empty for none, None where it can't be read, for example
    because a guest has the card. ``interfaces`` are the interface ids of
    the bitstreams that it accepts. ``tool`` names the vendor's tool that
    loads one, empty for the kernel's own interface. ``driver`` is the
    host's driver that exposes the function. ``dependents`` are the PCI
    functions, besides those assigned to the guest, that stop working when
    the region is reprogrammed. ``blank`` is the path of the bitstream that
    is loaded after each server, empty to keep the function.
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
class Note:
    """Note on one device or server, a file below ``state_dir``.

    ``address`` is the device's address or the server's uuid, ``reason`` a
    text for the operator, ``when`` the time in ISO 8601.
    """

    address: str
    reason: str
    when: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Note):
    """Mark of a device that must not be used until an operator heals it.

    ``function`` is the function of its region when it failed (see
    ``Region.function``).
    """

    function: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Note):
    """Mark of an operator that a device accepts no new server.

    ``author`` is the operator's name, empty if it is not known.
    """

    author: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical device.

    ``address`` is its PCI address or, for a device off the PCI bus, its
    name in sysfs. ``plugin`` names the vendor driver that described it and
    ``driver`` the kernel driver bound to it. ``vendor`` and ``model`` are
    for users; ``vendor_id`` and ``product_id`` for programs.
    ``resource_class`` is the class of its slots, ``counters`` has the total
    of each of its resource classes. ``slots`` are the identifiers that a
    claim can have, enough for any state of the device. ``members`` are the
    functions that are assigned together with it. ``geometry`` has the rules
    by which its partitions share it. ``is_managed`` is True where libvirt
    binds and unbinds the functions of guests. ``vgpu_params`` is set on
    each new partition.

    ``parent`` is the address of the device that contains this one, as the
    card of a region; ``region`` is set on such devices. A device with one
    of the next four accepts no new server: ``fault`` is the reason why it
    must not be used, ``drain`` the operator's reason to drain it,
    ``marks_unknown`` the reason why these marks can't be read, ``unnoted``
    the reason why its servers can't be noted; each is empty without one.
    Only ``fault`` is about the device itself. ``unread_traits`` are prefixes
    of traits that could not be read: the provider keeps those it has.
    A device without counters is reported, but not offered.
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
    unnoted: str = ""
    unread_traits: tuple[str, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Return whether the device accepts no new server."""
        return bool(
            self.fault or self.drain or self.marks_unknown or self.unnoted
        )

    def profile(self, name: str) -> Profile | None:
        for profile in self.profiles:
            if profile.name == name:
                return profile
        return None

    def charges(self, name: str) -> Mapping[str, int]:
        """Return the amounts of one partition of a profile, by class.

        A profile that the device does not have is charged one slot.
        """
        profile = self.profile(name)
        return profile.charges if profile else {self.resource_class: 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostState:
    """A host as it was read: devices and problems.

    ``unknown`` are the addresses of devices that exist but could not be
    read at all. ``complete`` is False where a whole technology could not
    be read: then a device that is not among ``devices`` may still exist.
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown: frozenset[str] = frozenset()
    complete: bool = True

    def device(self, address: str) -> Device | None:
        return next((d for d in self.devices if d.address == address), None)

    @functools.cached_property
    def resource_classes(self) -> frozenset[str]:
        """Return the resource classes of all devices."""
        return frozenset(
            name
            for device in self.devices
            for name in (device.resource_class, *device.counters)
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Slot:
    """A device identifier that Nova assigned to a consumer."""

    provider: str
    resource_class: str
    identifier: str

    @property
    def key(self) -> tuple[str, str]:
        """Return it without its resource class, which claims lack."""
        return self.provider, self.identifier


class ClaimState(enum.Enum):
    """Progress of a claim: only planned, or its partition is made."""

    PLANNED = "planned"
    MADE = "made"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishedClaim:
    """Fields of a claim that a provider tree or an audit needs.

    ``slot`` is the identifier that Nova assigned on provider ``provider``;
    ``parent`` is the mdev parent or function of the partition, and
    ``handle`` the id that the partition has, or will have. ``start`` is its
    position under a MIXED layout, ``instance_start`` that of the GPU
    instance to create, None when one with room exists.

    ``is_allocated`` is False where its allocation in Placement is missing
    or incomplete: ``unallocated`` has the missing amounts by resource
    class, and is empty where all are missing.

    The claims file has these fields: earlier releases read it.
    """

    consumer: str
    provider: str
    device: str
    profile: str
    slot: str
    parent: str
    handle: str
    technology: str
    start: int | None = None
    instance_start: int | None = None
    state: ClaimState = ClaimState.PLANNED
    is_allocated: bool = True
    unallocated: Mapping[str, int] = dataclasses.field(
        default_factory=dict, hash=False
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim(PublishedClaim):
    """A partition reserved for a consumer.

    ``type_id`` is the parent's id of the profile (``nvidia-222``), empty for
    technologies without one. ``plugin`` names the vendor driver that plans
    its actions. ``instance`` names the kind of GPU instance that it needs;
    ``owns_instance`` is True where the instance is destroyed with the last
    partition in it.

    ``region`` is the claimed FPGA region, ``functions`` are the traits of
    the functions that the flavor requires there; ``image`` is the id of
    the flavor's Glance image, ``bitstream`` the file to load, None for
    none; ``is_forced`` loads it even if the region has its function, which
    may be of another build.

    ``is_backed`` is False where Nova has no server and no migration for it.
    """

    plugin: str = ""
    type_id: str = ""
    device_api: str = ""
    members: tuple[str, ...] = ()
    is_managed: bool = True
    vgpu_params: str = ""
    instance: str = ""
    owns_instance: bool = False
    region: Region | None = None
    functions: frozenset[str] = frozenset()
    image: str = ""
    bitstream: Bitstream | None = None
    is_forced: bool = False
    is_backed: bool = True

    @property
    def key(self) -> ClaimKey:
        """Return the consumer, provider and slot, unique among claims."""
        return self.consumer, self.provider, self.slot

    @property
    def handles(self) -> tuple[str, ...]:
        """Return the handles of all its functions, or that of its mdev."""
        return self.handle, *self.members

    @property
    def scrubbed(self) -> tuple[str, ...]:
        """Return the functions to scrub after its server, the slot first.

        FPGA regions are blanked instead.
        """
        if self.technology not in _WHOLE_FUNCTIONS or self.region is not None:
            return ()
        return self.slot, *self.members
