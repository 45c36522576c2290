# SPDX-License-Identifier: Apache-2.0
"""Wire format between the two hosts of a live migration.

Nova's object for live migrations has no field for other software, but two
maps of strings (``LibvirtLiveMigrateData.source_mdev_types`` and
``target_mdevs``, both since Nova 29). Each gets one entry, whose key is no
mdev's uuid: a host without this library refuses it as an unknown mdev.
"""

import dataclasses
from collections.abc import Callable, Iterable

from nova_accel import errors, model
from nova_accel.claims import migration
from nova_accel.model import json_codec, names

KEY = "nova-accel"
_SUBJECT = "data of the other host of a live migration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WireHost:
    """A host, and the partitions that it has or could make.

    ``topology`` is the text of ``GuestLayouts.describe_guest``.
    """

    host: migration.MigrationHost
    parts: tuple[migration.MigrationPartition, ...]
    topology: str = ""


# More than a server has partitions, or a host kinds of them; the longest text
# is the topology of a guest with 256 buses.
_LIMITS = json_codec.Limits(text=65_536, items=512, rows=8192)
# Hosts with different versions of the format refuse each other.
_FORMAT = json_codec.Format(kind=WireHost, key="form", limits=_LIMITS)


def to_text(host: WireHost) -> str:
    """Return a host as one line of JSON."""
    return _FORMAT.encode(host)


def parse_text(text: str) -> WireHost:
    """Return the host that the other side has sent.

    Unknown fields are ignored: the other host may run a newer nova-accel.

    :raises MalformedError: the text has another format.
    """
    try:
        return _FORMAT.decode(text)
    except ValueError as error:
        raise errors.MalformedError(
            _SUBJECT,
            text,
            f"format {_FORMAT.version} ({error}): run one nova-accel on both",
        ) from error


def parts_of(
    claims: Iterable[model.Claim],
    host: model.HostState,
    read_driver: Callable[[str], str],
) -> tuple[migration.MigrationPartition, ...]:
    """Return the partitions of claims, as they would migrate.

    :param read_driver: returns the driver of a function, empty if it is
        unknown. For VFs that libvirt binds to a driver of its choice.
    """
    return tuple(_part(claim, host, read_driver) for claim in claims)


def _part(
    claim: model.Claim,
    host: model.HostState,
    read_driver: Callable[[str], str],
) -> migration.MigrationPartition:
    device = host.device(claim.device)
    profile = device.profile(claim.profile) if device else None
    driver = _mdev_driver(device, claim.type_id) if device else ""
    if claim.technology == "vf":
        driver = read_driver(claim.handle)
    return migration.MigrationPartition(
        technology=claim.technology,
        driver=_module(driver),
        profile=claim.profile,
        size=_size(profile),
        device_api=claim.device_api,
        handle=claim.handle,
    )


def offer_of(
    device: model.Device, profile: model.Profile
) -> migration.MigrationPartition:
    """Return the partition that a device could make for a profile."""
    return migration.MigrationPartition(
        technology=device.technology,
        driver=_module(_mdev_driver(device, *profile.handles.values())),
        profile=profile.name,
        size=_size(profile),
        device_api=profile.device_api,
    )


def _mdev_driver(device: model.Device, *type_ids: str) -> str:
    """Return the driver that makes a device's partitions.

    An mdev parent on no bus has no driver; its types are named after the
    module nevertheless (drivers/vfio/mdev/mdev_sysfs.c,
    ``dev_driver_string``: mtty-1).
    """
    if device.driver or device.technology != "mdev":
        return device.driver or ""
    return next(iter(type_ids), "").rpartition("-")[0]


def _size(profile: model.Profile | None) -> int:
    if profile is None:
        return 0
    return profile.size or profile.charges.get(names.GPU_MEMORY_CLASS, 0)


def _module(driver: str) -> str:
    """Return the name of a driver's module, which has no dash."""
    return driver.replace("-", "_")
