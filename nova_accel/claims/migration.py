# SPDX-License-Identifier: Apache-2.0
"""Checks whether accelerators can live-migrate to another host.

Facts of both hosts go in, reasons against it come out. What can't be told
of a host counts as a reason where the answer depends on it.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

Version = tuple[int, ...]

_MS_PER_S = 1000
_RELEASE = re.compile(r"(\d+)\.(\d+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationAbility:
    """What it takes to move the state of a kernel driver's partitions.

    ``kernel`` is the first Linux whose driver can, ``libvirt`` and ``qemu``
    the first that carry it. ``is_vendor`` tells that the driver comes from
    its vendor, who lets its state move only between the same versions of
    it; the kernel's own drivers see for themselves what they can load.
    """

    kernel: Version
    libvirt: Version
    qemu: Version
    is_vendor: bool = False


# What Nova itself asks for: MIN_MDEV_LIVEMIG_* and MIN_VFIO_PCI_VARIANT_*
# in nova/virt/libvirt/driver.py. Linux 5.18 brought the interface by which
# QEMU moves the state of devices (include/uapi/linux/vfio.h,
# VFIO_DEVICE_FEATURE_MIGRATION).
_FIRST_KERNEL = (5, 18)
_FOR_MDEVS = (8, 6, 0), (8, 1, 0)
_FOR_FUNCTIONS = (10, 0, 0), (8, 2, 2)


def _ability(
    kernel: Version,
    programs: tuple[Version, Version],
    is_vendor: bool = False,
) -> MigrationAbility:
    libvirt, qemu = programs
    return MigrationAbility(
        kernel=kernel, libvirt=libvirt, qemu=qemu, is_vendor=is_vendor
    )


# By technology and the driver that holds the partition: drivers/vfio/pci/
# and samples/vfio-mdev/mtty.c in the kernel, each since the release that
# it came with. Whatever is not here can't be moved.
_ABLE: Mapping[tuple[str, str], MigrationAbility] = {
    ("mdev", "nvidia"): _ability(_FIRST_KERNEL, _FOR_MDEVS, is_vendor=True),
    ("mdev", "mtty"): _ability((6, 7), _FOR_MDEVS),
    ("vendor-vfio", "nvidia"): _ability(
        _FIRST_KERNEL, _FOR_FUNCTIONS, is_vendor=True
    ),
    ("vf", "hisi_acc_vfio_pci"): _ability(_FIRST_KERNEL, _FOR_FUNCTIONS),
    ("vf", "mlx5_vfio_pci"): _ability(_FIRST_KERNEL, _FOR_FUNCTIONS),
    ("vf", "pds_vfio_pci"): _ability((6, 6), _FOR_FUNCTIONS),
    ("vf", "qat_vfio_pci"): _ability((6, 10), _FOR_FUNCTIONS),
    ("vf", "virtio_vfio_pci"): _ability((6, 13), _FOR_FUNCTIONS),
    ("vf", "xe_vfio_pci"): _ability((6, 19), _FOR_FUNCTIONS),
}

#: The kernel modules whose versions ``MigrationHost.drivers`` has.
DRIVERS = tuple(sorted({driver for _, driver in _ABLE}))

# Why a whole technology can't move, whatever drives it.
_NEVER = {
    "passthrough": "is a whole function, and no driver on the host knows"
    " its state",
    "fpga": "is an FPGA region, whose logic no host can read out",
}
_MEND = "use a cold migration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPartition:
    """A partition that moves, or one that a host can make.

    ``driver`` is the kernel driver that holds it, with underscores, empty
    where it can't be told; ``size`` its framebuffer in MiB, 0 where it has
    none or it can't be told. ``handle`` is empty for what is not made.
    """

    technology: str
    driver: str
    profile: str
    size: int = 0
    device_api: str = ""
    handle: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationHost:
    """What of a host decides about a move.

    ``libvirt`` and ``qemu`` are versions, ``kernel`` is the release as
    ``uname -r`` prints it: empty where it can't be told. ``drivers`` are
    the versions of loaded kernel modules, empty for a module that tells
    none. ``has_post_copy`` tells whether Nova lets a guest run at its
    destination before all of it is there.
    """

    libvirt: Version = ()
    qemu: Version = ()
    kernel: str = ""
    drivers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_post_copy: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MigrationLimits:
    """How long a guest may stand still, in ms, and the link, in MiB/s.

    The link is 0 where nobody has said how fast it is.
    """

    downtime: int
    link: int = 0


def check_leaving(
    parts: Iterable[MigrationPartition],
    host: MigrationHost,
    limits: MigrationLimits,
) -> tuple[str, ...]:
    """Return why partitions can't leave the host they are on.

    Nothing is asked of the destination: a server that can't leave is
    refused before any host is looked for. Empty: they can.
    """
    found = tuple(parts)
    reasons = [_unable(part) for part in found]
    for part in found:
        reasons += _old(part, host, "this host")
    if found and host.has_post_copy:
        reasons.append(
            "post-copy is on, and a guest with devices of its host can't"
            " run before all of their state is there: set [libvirt]"
            " live_migration_permit_post_copy = False on this host"
        )
    reasons.append(_too_long(found, limits))
    return _unique(reasons)


def check_arriving(
    parts: Iterable[MigrationPartition],
    source: MigrationHost,
    offers: Sequence[MigrationPartition],
    destination: MigrationHost,
) -> tuple[str, ...]:
    """Return why partitions can't arrive at another host.

    :param parts: what leaves, each of which ``check_leaving`` lets go.
    :param offers: what the destination can make, or has made, of it.
    """
    reasons: list[str] = []
    for part in parts:
        ability = _ABLE.get((part.technology, part.driver))
        if ability is None:
            reasons.append(_unable(part))
            continue
        reasons += _old(part, destination, "the destination")
        reasons.append(_not_offered(part, offers))
        reasons.append(_unlike(part, ability, source, destination))
    return _unique(reasons)


def estimate_downtime(
    parts: Iterable[MigrationPartition], link: int
) -> int | None:
    """Return how long a guest stands still for its partitions, in ms.

    All of the framebuffer may have to cross the link after the guest was
    stopped: vendors' drivers send little or nothing of it before. None
    where the link is not known.

    :param link: in MiB/s, 0 for unknown.
    """
    if link <= 0:
        return None
    size = sum(part.size for part in parts)
    return -(-size * _MS_PER_S // link)


def plan_pairs(
    before: Iterable[MigrationPartition], after: Iterable[MigrationPartition]
) -> Mapping[str, str]:
    """Return which partition takes the place of which, by handle.

    Alike ones are taken in the order of each host. Empty where they don't
    go into each other: a part would be left over.
    """
    free: dict[tuple[str, str, str], list[str]] = {}
    for part in after:
        free.setdefault(_kind(part), []).append(part.handle)
    pairs: dict[str, str] = {}
    for part in before:
        alike = free.get(_kind(part))
        if not alike:
            return {}
        pairs[part.handle] = alike.pop(0)
    return {} if any(free.values()) else pairs


def _kind(part: MigrationPartition) -> tuple[str, str, str]:
    return part.technology, part.profile, part.device_api


def _unable(part: MigrationPartition) -> str:
    """Return why nothing can move a partition; empty if something can."""
    what = f"{part.handle} ({part.profile})"
    if part.technology in _NEVER:
        return f"{what} {_NEVER[part.technology]}: {_MEND}"
    if (part.technology, part.driver) in _ABLE:
        return ""
    if not part.driver:
        return (
            f"{what}: it can't be told which kernel driver holds it, so not"
            f" whether its state can be moved either: {_MEND}"
        )
    return (
        f"{what} is held by the kernel driver {part.driver}, which is not"
        f" known to move the state of such devices: {_MEND}"
    )


def _old(
    part: MigrationPartition, host: MigrationHost, where: str
) -> Iterable[str]:
    """Yield what of a host's programs is too old for a partition."""
    ability = _ABLE.get((part.technology, part.driver))
    if ability is None:
        return
    for name, has, needs in (
        ("libvirt", host.libvirt, ability.libvirt),
        ("QEMU", host.qemu, ability.qemu),
        ("Linux", _release(host.kernel), ability.kernel),
    ):
        wanted = f"to move {part.profile} it needs {_text(needs)}"
        if not has:
            yield f"the version of {name} on {where} can't be told; {wanted}"
        elif has < needs:
            yield f"{where} has {name} {_text(has)}; {wanted}: update it"


def _not_offered(
    part: MigrationPartition, offers: Sequence[MigrationPartition]
) -> str:
    named = [
        offer
        for offer in offers
        if (offer.technology, offer.profile) == (part.technology, part.profile)
    ]
    if not named:
        return (
            f"the destination has no card that makes {part.profile} as"
            f" {part.technology}; see `nova-accel inspect` there"
        )
    if all(offer.device_api != part.device_api for offer in named):
        return (
            f"the destination makes {part.profile} with another device API"
            f" ({named[0].device_api}, here {part.device_api})"
        )
    return ""


def _unlike(
    part: MigrationPartition,
    ability: MigrationAbility,
    source: MigrationHost,
    destination: MigrationHost,
) -> str:
    """Return how the drivers differ that write and read the state."""
    if part.driver not in destination.drivers:
        return (
            f"the kernel driver {part.driver} is not loaded at the"
            f" destination; if it is there, load it: modprobe {part.driver}"
        )
    if not ability.is_vendor:
        return ""
    here = source.drivers.get(part.driver, "")
    there = destination.drivers[part.driver]
    if not here or not there:
        where = "the destination" if here else "this host"
        return (
            f"the version of the driver {part.driver} on {where} can't be"
            " told, and its state moves between the same versions only"
        )
    if here != there:
        return (
            f"the driver {part.driver} is {here} here and {there} at the"
            " destination, and its state moves between the same versions"
            " only: install the same one on both"
        )
    return ""


def _too_long(
    parts: Sequence[MigrationPartition], limits: MigrationLimits
) -> str:
    needed = estimate_downtime(parts, limits.link)
    if needed is None or needed <= limits.downtime:
        return ""
    size = sum(part.size for part in parts)
    return (
        f"{size} MiB of framebuffer over {limits.link} MiB/s may keep the"
        f" guest still for {needed} ms, and [libvirt]"
        f" live_migration_downtime allows {limits.downtime} ms: it would"
        " never end; allow more, or use a faster link"
    )


def _release(text: str) -> Version:
    """Return the two numbers that a kernel's release begins with."""
    found = _RELEASE.match(text)
    return (int(found[1]), int(found[2])) if found else ()


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _unique(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, reasons)))
