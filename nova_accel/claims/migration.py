# SPDX-License-Identifier: Apache-2.0
"""Live migration of accelerators: checks, and order of PCI address changes.

The checks compare facts of both hosts and return reasons for a refusal. A
fact that is unknown is a reason if the check depends on it.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_accel.catalog import features
from nova_accel.catalog.features import Version

_MS_PER_S = 1000
_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,3})\b")
# Temporary addresses are those that no host has, in domain ffff: domains of
# hosts count from 0000, and those of VMD from 10000.
_LAST_DOMAIN = 0xFFFF
_BUSES, _SLOTS, _FUNCTIONS = 256, 32, 8


# By technology and kernel driver. Partitions of other drivers can't be moved.
# Names of VFIO variant drivers end so; a version above all others.
_VARIANT, _ANY = "_vfio_pci", (1000,)
_ABILITIES: Mapping[tuple[str, str], features.Feature] = {
    ("mdev", "nvidia"): features.MDEV_MIGRATION,
    ("vendor-vfio", "nvidia"): features.TYPED_MIGRATION,
} | {
    ("mdev" if driver == "mtty" else "vf", driver): feature
    for driver, feature in features.DRIVERS.items()
}

# What a partition can become at the destination: the same vGPU in the other
# form of its vendor's driver.
_OTHER_TECHNOLOGY = {("mdev", "nvidia"): "vendor-vfio"}

# Drivers outside of the kernel, whose state is compatible only with the same
# version; drivers of the kernel check the compatibility themselves.
_OF_VENDORS = frozenset({"nvidia"})

#: The kernel modules whose versions ``MigrationHost.drivers`` has.
DRIVERS = tuple(sorted({driver for _, driver in _ABILITIES}))

# Since Linux 6.7 the log of the pages that devices write, iova_bitmap.c, is
# built with IOMMUFD (drivers/iommu/iommufd/Makefile), or for these drivers
# (drivers/vfio/pci/{mlx5,pds}/Kconfig: select IOMMUFD_DRIVER).
_LOG_IN_IOMMUFD = (6, 7)
_WITH_LOG = frozenset({"mlx5_vfio_pci", "pds_vfio_pci"})

# Technologies that can't move with any driver, and why.
_UNSUPPORTED = {
    "passthrough": "is a whole function, and no driver on the host knows"
    " its state",
    "fpga": "is an FPGA region, whose logic no host can read out",
}
_HINT = "use a cold migration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPartition:
    """A partition that moves, or one that a host can make.

    ``driver`` is its kernel driver, with underscores, empty where unknown;
    ``size`` is its framebuffer in MiB, 0 without one or where unknown.
    ``handle`` is empty for a partition that does not exist.
    """

    technology: str
    driver: str
    profile: str
    size: int = 0
    device_api: str = ""
    handle: str = ""

    @property
    def kind(self) -> str:
        """Return a text that interchangeable partitions have in common."""
        return "/".join(_kind(self))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationHost:
    """Facts of a host that decide about a migration.

    ``libvirt`` and ``qemu`` are versions, ``kernel`` is the release as
    ``uname -r`` prints it: empty where unknown. ``drivers`` are the
    versions of loaded kernel modules, empty for a module without one.
    ``has_post_copy`` is True where Nova permits post-copy migration.
    ``vfio`` is the Linux release whose VFIO the kernel has at least, as its
    files show, empty if they don't.
    """

    libvirt: Version = ()
    qemu: Version = ()
    kernel: str = ""
    drivers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_post_copy: bool = False
    vfio: Version = ()

    def linux(self, driver: str) -> Version:
        """Return the Linux release whose VFIO a device can use.

        The kernel's number, or the newer one that its files prove. A
        variant driver is part of the kernel since it can move devices.
        """
        if driver.endswith(_VARIANT) and driver in self.drivers:
            return _ANY
        return max(_parse_release(self.kernel), self.vfio)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationLimits:
    """Permitted downtime of a guest in ms, and the link in MiB/s.

    The link is 0 where its throughput is not configured.
    ``has_dirty_log`` is False where QEMU reads a log of written pages from a
    kernel that has none.
    """

    downtime: int
    link: int = 0
    has_dirty_log: bool = True


def check_source(
    parts: Iterable[MigrationPartition],
    host: MigrationHost,
    limits: MigrationLimits,
) -> tuple[str, ...]:
    """Return why partitions can't leave their host, empty if they can.

    It needs no destination: such a server is refused before the scheduler
    selects a host.
    """
    parts = tuple(parts)
    reasons = [_explain_unsupported(part) for part in parts]
    for part in parts:
        reasons += _find_old_programs(part, host, "this host")
    if parts and host.has_post_copy:
        reasons.append(
            "post-copy is on, and a guest with devices of its host can't"
            " run before all of their state is there: set [libvirt]"
            " live_migration_permit_post_copy = False on this host"
        )
    if not limits.has_dirty_log:
        reasons += [_explain_missing_log(part, host) for part in parts]
    reasons.append(_check_downtime(parts, limits))
    return _unique(reasons)


def check_destination(
    parts: Iterable[MigrationPartition],
    source: MigrationHost,
    offers: Sequence[MigrationPartition],
    destination: MigrationHost,
) -> tuple[str, ...]:
    """Return why a destination can't accept partitions, empty if it can.

    :param parts: partitions that ``check_source`` permits to leave.
    :param offers: partitions that the destination can make or has made.
    """
    reasons: list[str] = []
    parts = tuple(parts)
    for part in parts:
        if (part.technology, part.driver) not in _ABILITIES:
            reasons.append(_explain_unsupported(part))
            continue
        if _changes_technology(part, offers):
            reasons += _check_change(part, parts, source, destination)
        else:
            reasons += _find_old_programs(part, destination, "the destination")
            reasons.append(_check_offers(part, offers))
        reasons.append(_compare_drivers(part, source, destination))
    return _unique(reasons)


def estimate_downtime(
    parts: Iterable[MigrationPartition], link: int
) -> int | None:
    """Return the downtime of a guest for its partitions, in ms.

    The whole framebuffer may have to be sent after the guest was stopped:
    vendors' drivers send little or none of it before. None where the link
    is unknown.

    :param link: in MiB/s, 0 for unknown.
    """
    if link <= 0:
        return None
    size = sum(part.size for part in parts)
    return -(-size * _MS_PER_S // link)


def plan_pairs(
    before: Iterable[MigrationPartition], after: Iterable[MigrationPartition]
) -> Mapping[str, str]:
    """Return the new handle of each partition, by old handle.

    Equal partitions are paired in the order of each host, or those of one
    profile where all change their technology. Empty where a partition would
    remain without a pair.
    """
    before, after = tuple(before), tuple(after)
    changed = [_other_kind(part) for part in before]
    return _pair(before, [_kind(part) for part in before], after) or _pair(
        before, changed, after
    )


def _pair(
    before: Sequence[MigrationPartition],
    kinds: Sequence[tuple[str, str, str]],
    after: Sequence[MigrationPartition],
) -> Mapping[str, str]:
    """Return the new handles of partitions that become these kinds."""
    free: dict[tuple[str, str, str], list[str]] = {}
    for part in after:
        free.setdefault(_kind(part), []).append(part.handle)
    pairs: dict[str, str] = {}
    for part, kind in zip(before, kinds, strict=True):
        handles = free.get(kind)
        if not handles:
            return {}
        pairs[part.handle] = handles.pop(0)
    return {} if any(free.values()) else pairs


def _kind(part: MigrationPartition) -> tuple[str, str, str]:
    return part.technology, part.profile, part.device_api


def _other_kind(part: MigrationPartition) -> tuple[str, str, str]:
    """Return the kind that a partition can become, or its own."""
    technology = _OTHER_TECHNOLOGY.get((part.technology, part.driver))
    return (technology, part.profile, "") if technology else _kind(part)


def _explain_unsupported(part: MigrationPartition) -> str:
    """Return why no driver can move a partition, empty if one can."""
    name = f"{part.handle} ({part.profile})"
    if part.technology in _UNSUPPORTED:
        return f"{name} {_UNSUPPORTED[part.technology]}: {_HINT}"
    if (part.technology, part.driver) in _ABILITIES:
        return ""
    if not part.driver:
        return (
            f"{name}: its kernel driver is unknown, so it is unknown whether"
            f" its state can be moved: {_HINT}"
        )
    return (
        f"{name} has the kernel driver {part.driver}, which is not known to"
        f" move the state of such devices: {_HINT}"
    )


def _find_old_programs(
    part: MigrationPartition,
    host: MigrationHost,
    host_name: str,
    feature: features.Feature | None = None,
) -> Iterable[str]:
    """Yield the programs of a host that are too old for a partition.

    :param feature: by default the migration of such partitions.
    """
    ability = feature or _ABILITIES.get((part.technology, part.driver))
    if ability is None:
        return
    for name, version in (
        (features.LIBVIRT, host.libvirt),
        (features.QEMU, host.qemu),
        (features.LINUX, host.linux(part.driver)),
    ):
        minimum = ability.minimum(name)
        need = f"to move {part.profile} it needs {features.join(minimum)}"
        current = features.join(version)
        if not version:
            yield f"the version of {name} on {host_name} is unknown; {need}"
        elif version < minimum:
            yield f"{host_name} has {name} {current}; {need}: update it"


def _explain_missing_log(part: MigrationPartition, host: MigrationHost) -> str:
    """Return why QEMU can't move a partition of a host without IOMMUFD."""
    if (part.technology, part.driver) not in _ABILITIES:
        return ""
    release = _parse_release(host.kernel)
    if part.driver in _WITH_LOG or release < _LOG_IN_IOMMUFD:
        return ""
    return (
        f"the kernel of this host ({host.kernel}) has no IOMMUFD, so QEMU"
        f" can't know which pages {part.driver} writes, and would fail after"
        " the migration has begun: use a kernel with CONFIG_IOMMUFD; or start"
        " QEMU without dirty page tracking, as the documentation's page on"
        " live migration says, and set [nova_accel]"
        " live_migration_without_iommufd = True on this host"
    )


def _changes_technology(
    part: MigrationPartition, offers: Sequence[MigrationPartition]
) -> bool:
    """Return whether the destination has a profile in another form only."""
    technologies = {o.technology for o in offers if o.profile == part.profile}
    other = _OTHER_TECHNOLOGY.get((part.technology, part.driver))
    return part.technology not in technologies and other in technologies


def _check_change(
    part: MigrationPartition,
    parts: Sequence[MigrationPartition],
    source: MigrationHost,
    destination: MigrationHost,
) -> Iterator[str]:
    """Yield why a partition can't become one of another technology."""
    feature = features.MDEV_TO_VF
    yield from _find_old_programs(part, source, "this host", feature)
    yield from _find_old_programs(
        part, destination, "the destination", feature
    )
    if any(other.technology != part.technology for other in parts):
        yield (
            f"the destination makes {part.profile} as a typed VF: an mdev can"
            f" become one only if all devices of the server are mdevs; {_HINT}"
        )


def _check_offers(
    part: MigrationPartition, offers: Sequence[MigrationPartition]
) -> str:
    same_profile = [
        offer
        for offer in offers
        if (offer.technology, offer.profile) == (part.technology, part.profile)
    ]
    if not same_profile:
        return (
            f"the destination has no card that makes {part.profile} as"
            f" {part.technology}; see `nova-accel inspect` there"
        )
    if all(offer.device_api != part.device_api for offer in same_profile):
        return (
            f"the destination makes {part.profile} with another device API"
            f" ({same_profile[0].device_api}, here {part.device_api})"
        )
    return ""


def _compare_drivers(
    part: MigrationPartition,
    source: MigrationHost,
    destination: MigrationHost,
) -> str:
    """Return how the drivers of both hosts differ, empty if compatible."""
    if part.driver not in destination.drivers:
        return (
            f"the kernel driver {part.driver} is not loaded at the"
            f" destination; if it is installed, run modprobe {part.driver}"
        )
    if part.driver not in _OF_VENDORS:
        return ""
    version = source.drivers.get(part.driver, "")
    other = destination.drivers[part.driver]
    if not version or not other:
        host_name = "the destination" if version else "this host"
        return (
            f"the version of the driver {part.driver} on {host_name} is"
            " unknown, and its state moves between the same versions only"
        )
    if version != other:
        return (
            f"the driver {part.driver} is {version} here and {other} at the"
            " destination, and its state moves between the same versions"
            " only: install the same one on both"
        )
    return ""


def _check_downtime(
    parts: Sequence[MigrationPartition], limits: MigrationLimits
) -> str:
    needed = estimate_downtime(parts, limits.link)
    if needed is None or needed <= limits.downtime:
        return ""
    size = sum(part.size for part in parts)
    return (
        f"{size} MiB of framebuffer over {limits.link} MiB/s may stop the"
        f" guest for {needed} ms, and [libvirt] live_migration_downtime"
        f" allows {limits.downtime} ms: the migration would never end; allow"
        " more, or use a faster link"
    )


def _parse_release(text: str) -> Version:
    """Return the first two numbers of a kernel release, () without them."""
    match = _RELEASE.match(text)
    return (int(match[1]), int(match[2])) if match else ()


def _unique(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, reasons)))


def plan_pci_changes(
    pairs: Mapping[str, str], present: Collection[str] = ()
) -> Mapping[str, str]:
    """Return the steps, in order, that change all addresses in ``pairs``.

    Nova replaces addresses in a guest's XML one pair after another, each
    time the first match (nova/virt/libvirt/migration.py,
    ``_update_pci_dev_xml``): with A to B before B to C, both devices end
    up as C. Where a device gets an address that another one has, all get
    temporary ones first.

    :param pairs: new PCI addresses by old ones, all different.
    :param present: addresses that other devices in the XML have already, in
        place of an mdev. Nova could take such a device for that of a pair.
    :raises ValueError: two new addresses are equal, or an address of a pair
        is present.
    """
    if len(set(pairs.values())) < len(pairs):
        raise ValueError(f"two devices can't get one address: {pairs}")
    if shared := sorted({*pairs, *pairs.values()}.intersection(present)):
        raise ValueError(
            f"{shared[0]} is the address of a typed VF at the destination, and"
            f" of another device of the guest: {pairs}"
        )
    changes = {old: new for old, new in pairs.items() if old != new}
    if changes.keys().isdisjoint(changes.values()):
        return changes
    unused = _unused_addresses({*pairs, *pairs.values()})
    first = dict(zip(changes, unused, strict=False))
    return first | {first[old]: new for old, new in changes.items()}


def _unused_addresses(used: Collection[str]) -> Iterator[str]:
    for bus, slot, function in itertools.product(
        *(reversed(range(count)) for count in (_BUSES, _SLOTS, _FUNCTIONS))
    ):
        address = f"{_LAST_DOMAIN:04x}:{bus:02x}:{slot:02x}.{function:x}"
        if address not in used:
            yield address
