# SPDX-License-Identifier: Apache-2.0
"""Reader of all hosts' devices from Placement, and of Nova's flavors."""

import dataclasses
import functools
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from nova_accel import errors
from nova_accel.catalog import profile_order, vgpu_types
from nova_accel.model import names, providers
from placement_sync import parallel
from placement_sync.client import (
    calls,
    cloud_client,
    nova_api,
    provider_records,
    resource_providers,
    rest,
)
from placement_sync.fleet.flavors import (
    bare_metal,
    flavor_specs,
    offered_devices,
)

# Classes that each compute node has. A query for one unit of a class
# returns the hosts that have a free unit; the next class finds the others.
_BULK_CLASSES = ("MEMORY_MB", "VCPU", "DISK_GB")
# Returns those of some devices that a caller asks for.
Selection = Callable[
    [Sequence[offered_devices.OfferedDevice]],
    Iterable[offered_devices.OfferedDevice],
]
# Attempts to set a trait on a provider that other clients change meanwhile.
_ATTEMPTS = 5


# -- Placement --------------------------------------------------------------


def read(
    client: rest.RestClient, select: Selection = tuple
) -> offered_devices.Cloud:
    """Return all devices of this library, full and drained ones included.

    Bare-metal nodes with accelerators are among them. Three requests for any
    number of hosts; one more for all devices off the PCI bus, one for all
    hosts without a free unit of a class, three for each device of a host
    without Nova's inventories, and one for each unavailable device that is
    selected. With bare-metal nodes one more, and three for each of them.

    :param select: returns the devices to include, of all devices.
    :raises ServiceError: Placement can't be read.
    """
    # The first request alone authenticates: bad credentials are tried once.
    nodes = bare_metal.read_nodes(client)
    read_bulk = parallel.start(
        functools.partial(_read_bulk, client, _BULK_CLASSES[0])
    )
    rows = provider_records.list_with_trait(client.fetch, names.OWNER_TRAIT)
    own = {node.uuid: node for node in rows}
    if not own:
        # The other answer has no device.
        return offered_devices.Cloud(devices=tuple(select(nodes)))
    summaries = _complete(client, own.keys(), read_bulk())
    hosts = _find_root_names(client, rows)
    devices = tuple(
        select(
            [
                _build_device(node, own, hosts[node.uuid], summaries)
                for node in sorted(rows, key=lambda node: node.name)
            ]
            + nodes
        )
    )
    roots = {device.root for device in devices}
    cloud = offered_devices.Cloud(
        devices=devices,
        hosts={u: summaries[u].capacities for u in roots & summaries.keys()},
        disabled=frozenset(
            u
            for u in roots & summaries.keys()
            if names.DISABLED_TRAIT in summaries[u].traits
        ),
    )
    unavailable = {
        d.uuid
        for d in devices
        if d.traits & names.UNAVAILABLE_TRAITS and not d.counts
    }
    return read_totals(client, cloud, unavailable)


def _read_bulk(
    client: rest.RestClient, resource_class: str
) -> dict[str, providers.Provider]:
    """Return all providers of hosts with a free unit of a class.

    Hosts without devices are among them. A query for the owner trait would
    leave them out, but has a candidate for each device, not for each host:
    with 8 devices in 1,000 hosts Placement needs 1.7 times as long for it.
    """
    return provider_records.fetch_summaries(
        client.fetch, {"resources": f"{resource_class}:1"}
    )


def _complete(
    client: rest.RestClient,
    uuids: Collection[str],
    summaries: dict[str, providers.Provider],
) -> dict[str, providers.Provider]:
    """Return the summaries with those of the other providers in ``uuids``."""
    for name in _BULK_CLASSES[1:]:
        if not summaries.keys() >= set(uuids):
            summaries = summaries | _read_bulk(client, name)
    missing = [
        providers.Provider(uuid=uuid)
        for uuid in sorted(set(uuids) - summaries.keys())
    ]
    read = cloud_client.find_each(
        client, missing, provider_records.fetch_used_provider
    )
    return summaries | {
        empty.uuid: provider or empty
        for empty, provider in zip(missing, read, strict=True)
    }


def _find_root_names(
    client: rest.RestClient, devices: Sequence[providers.Provider]
) -> dict[str, str]:
    """Return the names of compute nodes by the uuids of their devices."""
    root_names = {d.uuid: names.find_root_name(d.name) for d in devices}
    unnamed = [d for d in devices if not root_names[d.uuid]]
    if unnamed:
        listed = provider_records.list_providers(client.fetch, {})
        listed_names = {p.uuid: p.name for p in listed}
        for device in unnamed:
            root_names[device.uuid] = listed_names.get(
                device.root, device.root
            )
    return root_names


def read_totals(
    client: rest.RestClient,
    cloud: offered_devices.Cloud,
    selected: Collection[str],
) -> offered_devices.Cloud:
    """Return the cloud with the totals of some devices, reserved units too.

    One request for each device.

    :param selected: uuids of the devices.
    :raises ServiceError: Placement can't be read.
    """
    uuids = [d.uuid for d in cloud.devices if d.uuid in selected]
    answers = cloud_client.find_each(
        client, uuids, provider_records.fetch_inventories
    )
    totals = {
        uuid: providers.build_capacities(answer[1]) if answer else {}
        for uuid, answer in zip(uuids, answers, strict=True)
    }
    devices = tuple(
        _replace_totals(d, totals[d.uuid]) if d.uuid in totals else d
        for d in cloud.devices
    )
    return dataclasses.replace(cloud, devices=devices)


def _replace_totals(
    device: offered_devices.OfferedDevice,
    totals: Mapping[str, providers.ClassCapacity],
) -> offered_devices.OfferedDevice:
    used = {name: c.used for name, c in device.capacities.items()}
    provider = providers.Provider(uuid=device.uuid, capacities=totals)
    return dataclasses.replace(
        device, capacities=provider.with_used(used).capacities
    )


def _build_device(
    listed: providers.Provider,
    own: Mapping[str, providers.Provider],
    host: str,
    summaries: Mapping[str, providers.Provider],
) -> offered_devices.OfferedDevice:
    top = listed
    while top.parent in own:
        top = own[top.parent]
    own_traits = summaries[top.uuid].traits
    model = {t for t in own_traits if t.startswith(names.MODEL_PREFIX)}
    model |= {t for t in own_traits if t.startswith(names.NAME_PREFIX)}
    return offered_devices.OfferedDevice(
        uuid=listed.uuid,
        name=listed.name,
        host=host,
        root=listed.root,
        card=top.uuid,
        model=min(model, default=""),
        traits=summaries[listed.uuid].traits,
        capacities=summaries[listed.uuid].capacities,
    )


def set_trait(
    placement: resource_providers.PlacementClient,
    uuids: Iterable[str],
    trait: str,
    is_present: bool = True,
) -> tuple[calls.Call, ...]:
    """Add a trait to providers, or remove it; return the calls made.

    Other traits stay, including those that another client sets meanwhile.

    :param uuids: those of the providers.
    :raises ServiceError: Placement fails, or other clients change the
        provider all the time.
    """
    applied: list[calls.Call] = []
    if is_present and not placement.filter_existing(frozenset({trait})):
        applied.append(calls.CreateTrait(name=trait))
        placement.apply(applied[0])
    for uuid in uuids:
        change = frozenset({trait})
        call = calls.ChangeTraits(
            uuid=uuid,
            name=uuid,
            added=change if is_present else frozenset(),
            removed=frozenset() if is_present else change,
        )
        applied.append(call)
        _apply(placement, call)
    return tuple(applied)


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
    """Flavor of Nova; ``needs`` are VCPU and MEMORY_MB of a server.

    ``disk_gb`` is separate: a server that boots from a volume needs less.
    """

    id: str
    name: str
    specs: Mapping[str, str]
    needs: Mapping[str, int]
    disk_gb: int = 0
    is_public: bool = True

    @property
    def needs_with_disk(self) -> dict[str, int]:
        """Return the needs of a server that boots from an image."""
        return {**self.needs, "DISK_GB": self.disk_gb}


def list_choices(
    flavor: Flavor, catalog: vgpu_types.Catalog
) -> Sequence[tuple[str, Flavor]]:
    """Return the flavors that Nova schedules for one, the first that fits.

    Each has its profile; a flavor without choices is its only one, without
    a profile.

    :raises MalformedError: the list of choices can't be used.
    """
    choices = profile_order.list_choices(flavor.specs, catalog)
    return [
        (choice.name, dataclasses.replace(flavor, specs=choice.specs))
        for choice in choices
    ] or [("", flavor)]


def find_flavor(compute: rest.RestClient, name_or_id: str) -> Flavor:
    """Return the flavor with this id or, if there is none, this name.

    :raises MalformedError: Nova has no such flavor, or does not show it.
    :raises ServiceError: Nova can't be read.
    """
    path = f"/flavors/{provider_records.quote_name(name_or_id)}"
    if name_or_id:
        by_id = compute.read(path, _parse_single_flavor)
        if by_id is not None:
            return by_id
    for flavor in list_flavors(compute):
        if flavor.name == name_or_id:
            return flavor
    raise errors.MalformedError(
        "flavor",
        name_or_id,
        "the name or the id of a flavor that Nova has; see `openstack flavor"
        " list --all`",
    )


def list_flavors(compute: rest.RestClient) -> Iterator[Flavor]:
    """Yield all flavors, private ones included.

    :raises ServiceError: Nova can't be read.
    """
    path = "/flavors/detail"
    return nova_api.read_pages(
        compute, path, "flavors", _parse_flavor, {"is_public": "None"}
    )


def _parse_single_flavor(body: Any) -> Flavor | None:
    return None if body is None else _parse_flavor(body["flavor"])


def _parse_flavor(body: Any) -> Flavor:
    return Flavor(
        id=body["id"],
        name=body["name"],
        specs=dict(body.get("extra_specs") or {}),
        needs={"VCPU": int(body["vcpus"]), "MEMORY_MB": int(body["ram"])},
        disk_gb=_disk_gb(body),
        is_public=bool(body.get("os-flavor-access:is_public", True)),
    )


def list_access(compute: rest.RestClient, flavor: str) -> tuple[str, ...]:
    """Return the ids of the projects with access to a private flavor.

    :param flavor: its id.
    :raises ServiceError: Nova can't be read.
    """
    path = f"/flavors/{provider_records.quote_name(flavor)}/os-flavor-access"
    rows = compute.find(path, lambda body: body["flavor_access"])
    # It may have been deleted since it was listed.
    return tuple(sorted(str(row["tenant_id"]) for row in rows or ()))


def _disk_gb(body: Any) -> int:
    """Return DISK_GB of a server that boots from an image.

    Computed as in ResourceRequest of nova/scheduler/utils.py.
    """
    swap_mb = int(body.get("swap") or 0)
    ephemeral = int(body.get("OS-FLV-EXT-DATA:ephemeral") or 0)
    return int(body.get("disk") or 0) + ephemeral + -(-swap_mb // 1024)


def create_flavor(
    compute: rest.RestClient, flavor: Flavor, is_public: bool = True
) -> Flavor:
    """Create a flavor without extra specs; return it with its id.

    :raises ServiceError: Nova refuses, for example a name that exists.
    """
    path = "/flavors"
    body = {
        "name": flavor.name,
        "vcpus": flavor.needs["VCPU"],
        "ram": flavor.needs["MEMORY_MB"],
        "disk": flavor.disk_gb,
        "os-flavor-access:is_public": is_public,
    }
    answer = compute.post(path, {"flavor": body})
    created = provider_records.parse_answer(
        "POST", path, answer.body, lambda body: str(body["flavor"]["id"])
    )
    return dataclasses.replace(flavor, id=created)


def delete_flavor(compute: rest.RestClient, flavor: Flavor) -> None:
    """Delete a flavor.

    :raises ServiceError: Nova refuses.
    """
    compute.delete(f"/flavors/{provider_records.quote_name(flavor.id)}")


def write_specs(
    compute: rest.RestClient, flavor: Flavor, change: flavor_specs.SpecsChange
) -> None:
    """Change a flavor's extra specs.

    New keys are written first: if Nova refuses them, nothing is changed.

    :raises ServiceError: Nova refuses the change.
    """
    path = f"/flavors/{provider_records.quote_name(flavor.id)}/os-extra_specs"
    if change.added:
        compute.post(path, {"extra_specs": dict(change.added)})
    for key in change.removed:
        compute.delete(f"{path}/{provider_records.quote_name(key)}")
