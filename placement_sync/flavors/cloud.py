# SPDX-License-Identifier: Apache-2.0
"""Providers of all hosts in Placement, and flavors of Nova."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib import parse

from nova_accel import errors
from nova_accel.model import names
from placement_sync.client import (
    calls,
    nova_api,
    provider_records,
    resource_providers,
    rest,
)
from placement_sync.flavors import flavor_specs, offered_devices

# What every host has of Nova's own. A bulk answer has the hosts that have
# one unit left: who is out of the first is asked for by the next.
_BULK_CLASSES = ("MEMORY_MB", "VCPU", "DISK_GB")
# How often a trait is set on a provider that others change meanwhile.
_ATTEMPTS = 5


# -- Placement --------------------------------------------------------------


def read(door: rest.RestClient) -> offered_devices.Cloud:
    """Return all devices of ours, full ones and drained ones too.

    Three requests, whatever the number of hosts. Hosts that have nothing
    left of a class cost one more, once for all of them; a host without
    Nova's inventories three for each device, and each device that is
    drained, at fault or missing one.

    :raises ServiceError: Placement can't be asked.
    """
    ours = _ours(door)
    if not ours:
        return offered_devices.Cloud()
    listed = {each.uuid: each for each in _list(door)}
    found: dict[str, _ProviderSummary] = {}
    for name in _BULK_CLASSES:
        if not ours.keys() <= found.keys():
            found |= _summaries(door, name)
    for uuid in sorted(ours.keys() - found.keys()):
        found[uuid] = _read_one(door, uuid)
    devices = tuple(
        _device(each, ours, listed, found)
        for each in sorted(ours.values(), key=lambda each: each.name)
    )
    roots = {device.root for device in devices}
    cloud = offered_devices.Cloud(
        devices=devices,
        hosts={u: found[u].stock for u in roots & found.keys()},
    )
    out = {device.uuid for device in devices if device.is_out}
    return with_totals(door, cloud, out)


def with_totals(
    door: rest.RestClient, cloud: offered_devices.Cloud, uuids: Collection[str]
) -> offered_devices.Cloud:
    """Return the cloud, with all that some devices have, reserved or not.

    One request for each.

    :raises ServiceError: Placement can't be asked.
    """
    devices = tuple(
        dataclasses.replace(d, stock=_whole(door, d)) if d.uuid in uuids else d
        for d in cloud.devices
    )
    return dataclasses.replace(cloud, devices=devices)


def _whole(
    door: rest.RestClient, device: offered_devices.OfferedDevice
) -> Mapping[str, offered_devices.ListedCapacity]:
    used = {name: stock.used for name, stock in device.stock.items()}
    return _stock(door, device.uuid, used)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ProviderSummary:
    traits: frozenset[str]
    stock: Mapping[str, offered_devices.ListedCapacity]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _TreeNode:
    uuid: str
    name: str
    parent: str
    root: str


def _list(door: rest.RestClient) -> list[_TreeNode]:
    return door.read("/resource_providers", _parse_list)


def _parse_list(body: Any) -> list[_TreeNode]:
    return [
        _TreeNode(
            uuid=each["uuid"],
            name=each["name"],
            parent=each["parent_provider_uuid"] or "",
            root=each["root_provider_uuid"],
        )
        for each in body["resource_providers"]
    ]


def _ours(door: rest.RestClient) -> dict[str, _TreeNode]:
    """Return our providers; none where nobody ever reported one."""
    return {each.uuid: each for each in with_trait(door, names.OWNER_TRAIT)}


def with_trait(door: rest.RestClient, trait: str) -> list[_TreeNode]:
    """Return the providers that have a trait, by name."""
    path = f"/resource_providers?required={provider_records.quoted(trait)}"
    found = door.read_with_trait(path, trait, _parse_list) or []
    return sorted(found, key=lambda each: each.name)


def _summaries(
    door: rest.RestClient, resource_class: str
) -> dict[str, _ProviderSummary]:
    """Return all of every host with one unit of a class left."""
    query = {
        "resources_HOST": f"{resource_class}:1",
        "required_ACCEL": names.OWNER_TRAIT,
        "same_subtree": "_HOST,_ACCEL",
        "group_policy": "none",
    }
    path = f"/allocation_candidates?{parse.urlencode(query, safe=',:')}"
    return door.read(path, _parse_summaries)


def _parse_summaries(body: Any) -> dict[str, _ProviderSummary]:
    return {
        uuid: _ProviderSummary(
            traits=frozenset(each["traits"]),
            stock={
                name: offered_devices.ListedCapacity(
                    total=s["capacity"], capacity=s["capacity"], used=s["used"]
                )
                for name, s in each["resources"].items()
            },
        )
        for uuid, each in body["provider_summaries"].items()
    }


def _read_one(door: rest.RestClient, uuid: str) -> _ProviderSummary:
    """Return a provider that is in no bulk answer."""
    usages = provider_records.provider_path(uuid, "usages")
    traits = provider_records.provider_path(uuid, "traits")
    used = door.read(usages, lambda b: dict(b["usages"]) if b else {})
    return _ProviderSummary(
        traits=door.read(traits, _parse_traits),
        stock=_stock(door, uuid, used),
    )


def _parse_traits(body: Any) -> frozenset[str]:
    return provider_records.parse_traits(body) if body else frozenset()


def _stock(
    door: rest.RestClient, uuid: str, used: Mapping[str, int]
) -> dict[str, offered_devices.ListedCapacity]:
    path = provider_records.provider_path(uuid, "inventories")
    answer = door.read(path, provider_records.parse_inventories)
    return {
        name: offered_devices.ListedCapacity(
            total=int(i.total * i.allocation_ratio),
            capacity=int((i.total - i.reserved) * i.allocation_ratio),
            used=used.get(name, 0),
        )
        for name, i in (answer[1] if answer else {}).items()
    }


def _device(
    listed: _TreeNode,
    ours: Mapping[str, _TreeNode],
    everybody: Mapping[str, _TreeNode],
    found: Mapping[str, _ProviderSummary],
) -> offered_devices.OfferedDevice:
    top = listed
    while top.parent in ours:
        top = ours[top.parent]
    root = everybody.get(listed.root)
    model = {t for t in found[top.uuid].traits if _is_model(t)}
    return offered_devices.OfferedDevice(
        uuid=listed.uuid,
        name=listed.name,
        host=root.name if root else listed.root,
        root=listed.root,
        card=top.uuid,
        model=min(model, default=""),
        traits=found[listed.uuid].traits,
        stock=found[listed.uuid].stock,
    )


def _is_model(trait: str) -> bool:
    return trait.startswith(names.MODEL_PREFIX)


def ensure_trait(
    placement: resource_providers.PlacementClient,
    providers: Iterable[str],
    trait: str,
    is_there: bool = True,
) -> tuple[calls.Call, ...]:
    """Give a trait to providers, or take it; return what was done.

    Their other traits stay, also those that somebody else sets meanwhile.

    :param providers: uuids.
    :raises ServiceError: Placement can't be asked, or others change the
        provider all the time.
    """
    made: list[calls.Call] = []
    if is_there and not placement.known(frozenset({trait})):
        made.append(calls.CreateTrait(name=trait))
        placement.apply(made[0])
    for uuid in providers:
        change = frozenset({trait})
        call = calls.ChangeTraits(
            uuid=uuid,
            name=uuid,
            added=change if is_there else frozenset(),
            removed=frozenset() if is_there else change,
        )
        made.append(call)
        _apply(placement, call)
    return tuple(made)


def _apply(
    placement: resource_providers.PlacementClient, call: calls.Call
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            placement.apply(call)
        except errors.ServiceError as error:
            if not error.is_conflict or attempt == _ATTEMPTS:
                raise
        else:
            return


# -- Nova -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A flavor of Nova's; ``needs`` is what it takes, by resource class.

    ``disk_gb`` is apart: a server that boots from a volume takes less.
    """

    id: str
    name: str
    specs: Mapping[str, str]
    needs: Mapping[str, int]
    disk_gb: int = 0


def find_flavor(compute: rest.RestClient, wanted: str) -> Flavor:
    """Return the flavor of that id or, if there is none, of that name.

    :raises MalformedError: Nova has no such flavor, or shows none.
    :raises ServiceError: Nova can't be asked.
    """
    path = f"/flavors/{provider_records.quoted(wanted)}"
    if wanted and (found := compute.read(path, _one_flavor)) is not None:
        return found
    for flavor in flavors(compute):
        if flavor.name == wanted:
            return flavor
    raise errors.MalformedError(
        "flavor",
        wanted,
        "the name or the id of one that Nova has; see `openstack flavor list"
        " --all`",
    )


def flavors(compute: rest.RestClient) -> Iterator[Flavor]:
    """Return all flavors, those of some projects only too.

    :raises ServiceError: Nova can't be asked.
    """
    path = "/flavors/detail"
    return nova_api.pages(
        compute, path, "flavors", _flavor, {"is_public": "None"}
    )


def _one_flavor(body: Any) -> Flavor | None:
    return None if body is None else _flavor(body["flavor"])


def _flavor(body: Any) -> Flavor:
    return Flavor(
        id=body["id"],
        name=body["name"],
        specs=dict(body.get("extra_specs") or {}),
        needs={"VCPU": int(body["vcpus"]), "MEMORY_MB": int(body["ram"])},
        disk_gb=_disk_gb(body),
    )


def _disk_gb(body: Any) -> int:
    """Return what a server takes that boots from an image.

    As ResourceRequest of nova/scheduler/utils.py counts it.
    """
    swap_mb = int(body.get("swap") or 0)
    ephemeral = int(body.get("OS-FLV-EXT-DATA:ephemeral") or 0)
    return int(body.get("disk") or 0) + ephemeral + -(-swap_mb // 1024)


def write_specs(
    compute: rest.RestClient, flavor: Flavor, change: flavor_specs.SpecsChange
) -> None:
    """Change a flavor's extra specs.

    What is new goes first: Nova may refuse it, and then nothing is done.

    :raises ServiceError: Nova refuses it.
    """
    path = f"/flavors/{provider_records.quoted(flavor.id)}/os-extra_specs"
    if change.added:
        compute.post(path, {"extra_specs": dict(change.added)})
    for key in change.removed:
        compute.delete(f"{path}/{provider_records.quoted(key)}")
