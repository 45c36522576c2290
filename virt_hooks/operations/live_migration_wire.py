# SPDX-License-Identifier: Apache-2.0
"""Wire format between the two hosts of a live migration.

Nova's own object for it has no room for strangers, but two maps of strings
(``LibvirtLiveMigrateData.source_mdev_types`` and ``target_mdevs``, both
since Nova 29). Each is given one entry, under a key that is no mdev's
uuid: a host without this library refuses it as an mdev it can't have.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.claims import migration
from nova_accel.model import names, strict_json

KEY = "nova-accel"
# Of the form of the text. Hosts of different releases of this library
# refuse each other once it counts on.
_FORM = 1
_WHAT = "word of another host on a live migration"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WireHost:
    """A host, and the partitions that it has, or could make."""

    host: migration.MigrationHost
    parts: tuple[migration.MigrationPartition, ...]


def to_text(told: WireHost) -> str:
    """Return what is told as one line."""
    return json.dumps({"form": _FORM} | dataclasses.asdict(told))


def parse_told(text: str) -> WireHost:
    """Return what another host has told.

    :raises MalformedError: it is of another form.
    """
    try:
        found = strict_json.loads(text)
        if found["form"] != _FORM:
            raise ValueError(found["form"])
        return WireHost(
            host=_host(found["host"]),
            parts=tuple(
                migration.MigrationPartition(**part) for part in found["parts"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise errors.MalformedError(
            _WHAT, text, f"form {_FORM}: run one nova-accel on both"
        ) from error


def _host(found: Mapping[str, Any]) -> migration.MigrationHost:
    return migration.MigrationHost(
        libvirt=tuple(map(int, found["libvirt"])),
        qemu=tuple(map(int, found["qemu"])),
        kernel=str(found["kernel"]),
        drivers=dict(found["drivers"]),
        has_post_copy=bool(found["has_post_copy"]),
    )


def parts_of(
    claims: Iterable[model.Claim],
    host: model.HostState,
    read_driver: Callable[[str], str],
) -> tuple[migration.MigrationPartition, ...]:
    """Return the partitions that claims stand for, as they would move.

    :param read_driver: returns the driver of a function, empty where it
        can't be told. For VFs that libvirt binds to one of its choice.
    """
    return tuple(_part(claim, host, read_driver) for claim in claims)


def _part(
    claim: model.Claim,
    host: model.HostState,
    read_driver: Callable[[str], str],
) -> migration.MigrationPartition:
    device = host.device(claim.device)
    profile = device.profile(claim.profile) if device else None
    driver = _holder(device, claim.type_id) if device else ""
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
    """Return what a device could make of a profile, as it would arrive."""
    return migration.MigrationPartition(
        technology=device.technology,
        driver=_module(_holder(device, *profile.handles.values())),
        profile=profile.name,
        size=_size(profile),
        device_api=profile.device_api,
    )


def _holder(device: model.Device, *type_ids: str) -> str:
    """Return the driver that makes a device's partitions.

    A parent that stands on no bus has no driver; its mdev types are named
    after the module all the same (drivers/vfio/mdev/mdev_sysfs.c,
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
    """Return a driver as its module is called: never with a dash."""
    return driver.replace("-", "_")
