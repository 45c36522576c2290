# SPDX-License-Identifier: Apache-2.0
"""Plan of a removal: consumers, effects for them, objects to delete."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.inventory import wording
from nova_accel.model import names, providers
from placement_sync.client import nova_api
from placement_sync.fleet.flavors import flavor_specs

_MDEV = "mdev"
_ADOPTED = (
    "it was adopted from Nova's own vGPU support, and `nova-accel adopt undo`"
    " hands it back with its vGPUs"
)
_KEEPS = (
    "it keeps its mdevs until this host reboots; a hard reboot of the server"
    " keeps them"
)
_LOSES = "its next hard reboot takes its functions away, without an error"
_UNCLAIMED = (
    "nova-compute has no claim of it; `nova-accel audit` says whether the"
    " allocation leaked"
)
_CLEANING = (
    "nova-compute with nova-accel scrubs each before its next server; before"
    " another use reset and erase it, then run `nova-accel remove apply"
    " --cleaned ADDRESS`"
)
_NO_SERVER = (
    "it is a migration that waits to be confirmed or reverted, or a leaked"
    " allocation: see `openstack server migration list` and `nova-accel audit`"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Consumer of a host's devices.

    ``server`` is None for a consumer that is no server of Nova's. ``claims``
    are those of nova-compute, none for an allocation without one.
    ``is_adopted`` is true if an adoption of this host can be undone for it.
    """

    uuid: str
    server: nova_api.Server | None = None
    claims: tuple[model.Claim, ...] = ()
    is_adopted: bool = False

    @property
    def effect(self) -> str:
        """Return what happens to it under Nova's own driver."""
        if self.server is None:
            return _NO_SERVER
        if self.is_adopted:
            return _ADOPTED
        if not self.claims:
            return _UNCLAIMED
        is_mdev = all(claim.technology == _MDEV for claim in self.claims)
        return _KEEPS if is_mdev else _LOSES

    @property
    def devices(self) -> str:
        """Return its profiles and devices, as a list in one line."""
        return ", ".join(
            f"{claim.profile or '-'} ({claim.technology}) on {claim.device}"
            for claim in self.claims
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnFlavor:
    """Flavor that requests devices of this library.

    ``id`` and ``name`` are Nova's; ``change`` removes the request.
    """

    id: str
    name: str
    change: flavor_specs.SpecsChange


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostContents:
    """Objects of this library on a host and in its cloud.

    ``nodes`` are its providers, ``names`` their custom classes and traits,
    ``other_hosts`` the names of the other compute nodes with such providers.
    ``mdevs`` are handles of partitions whose servers are gone. ``state_dir``
    is empty if the directory has no file of this library. ``unclean`` has the
    devices and functions not seen clean, each with the reason. ``manual`` are
    texts about changes by hand, each with its remedy.
    """

    root: providers.ProviderRoot
    nodes: tuple[providers.ProviderNode, ...] = ()
    holders: tuple[Holder, ...] = ()
    names: frozenset[str] = frozenset()
    mdevs: tuple[str, ...] = ()
    other_hosts: tuple[str, ...] = ()
    flavors: tuple[OwnFlavor, ...] = ()
    state_dir: str = ""
    unclean: Mapping[str, str] = dataclasses.field(default_factory=dict)
    manual: tuple[tuple[str, str], ...] = ()


def list_node_names(node: providers.ProviderNode) -> frozenset[str]:
    """Return the custom classes and traits of this library on a provider."""
    traits = set(filter(flavor_specs.is_own_name, node.traits))
    return frozenset(
        name
        for name in node.inventories.keys() | traits
        if name.startswith(names.CUSTOM)
    )


def list_profile_names(device: model.Device) -> frozenset[str]:
    """Return the traits of a device's profiles.

    Its provider has those of profiles that it can make at the time.
    """
    traits = frozenset(profile.trait for profile in device.profiles)
    return traits | frozenset(map(names.supported_trait, traits))


def list_flavor_names(specs: Mapping[str, str]) -> frozenset[str]:
    """Return the custom classes and traits that extra specs name."""
    listed = (key.partition(":")[2] for key in specs)
    return frozenset(n for n in listed if n.startswith(names.CUSTOM))


def format_holder(holder: Holder) -> str:
    """Return one line about a consumer."""
    server = holder.server
    name = f" {server.name} ({server.status})" if server else ""
    devices = f" has {holder.devices}" if holder.claims else ""
    return f"{holder.uuid}{name}{devices}: {holder.effect}"


def as_text(contents: HostContents) -> str:
    """Return the plan for people."""
    return "".join(f"{line}\n" for line in _format(contents))


def _format(contents: HostContents) -> Iterator[str]:
    others = ", ".join(contents.other_hosts) or "none, it is the last one"
    yield f"Host: {contents.root.name}"
    yield f"Other hosts with accelerators: {others}"
    yield from _format_list(
        "Servers and migrations that have devices",
        map(format_holder, contents.holders),
    )
    yield from _format_list(
        "Resource providers to close, and to delete once unused",
        (node.name for node in contents.nodes),
    )
    yield from _format_list(
        "Resource classes and traits to delete, if nothing else uses them",
        sorted(contents.names),
    )
    yield from _format_list("Mdevs and VF types to remove", contents.mdevs)
    yield from format_unclean(contents.unclean)
    yield from _format_list(
        "Flavors that request these devices",
        (
            f"{flavor.name}: {', '.join(flavor.change.removed)}"
            for flavor in contents.flavors
        ),
    )
    yield f"State directory to empty: {contents.state_dir or 'none'}"
    yield from _format_list(
        "To do by hand",
        (
            f"{text}: {'; '.join(remedy.splitlines())}"
            for text, remedy in contents.manual
        ),
    )


def format_unclean(unclean: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about devices and functions that are not seen clean."""
    yield from _format_list(
        "Devices and functions that may hold a server's data; notes stay",
        (f"{address}: {reason}" for address, reason in unclean.items()),
    )
    if unclean:
        yield f"  {_CLEANING}"


def _format_list(title: str, lines: Iterable[str]) -> Iterator[str]:
    listed = tuple(lines)
    yield f"{title}: {'' if listed else 'none'}".rstrip()
    for line in listed:
        yield f"  {line}"


def as_dict(contents: HostContents) -> dict[str, object]:
    """Return the plan for JSON; its keys are a stable interface."""
    return {
        "host": {"name": contents.root.name, "uuid": contents.root.uuid},
        "other_hosts": list(contents.other_hosts),
        "holders": [as_holder(holder) for holder in contents.holders],
        "providers": [node.name for node in contents.nodes],
        "names": sorted(contents.names),
        "mdevs": list(contents.mdevs),
        "unclean": dict(contents.unclean),
        "flavors": {
            flavor.name: list(flavor.change.removed)
            for flavor in contents.flavors
        },
        "state_dir": contents.state_dir,
        "manual": [
            {"text": text, "remedy": remedy}
            for text, remedy in contents.manual
        ],
    }


def as_holder(holder: Holder) -> dict[str, object]:
    """Return a consumer for JSON."""
    return {
        "uuid": holder.uuid,
        "name": holder.server.name if holder.server else "",
        "devices": [claim.device for claim in holder.claims],
        "effect": holder.effect,
    }


def explain_holders(holders: tuple[Holder, ...]) -> str:
    """Return why a host with these consumers is not left."""
    listed = "; ".join(map(format_holder, holders))
    count = wording.count_of(len(holders), "consumer")
    used = f"{count} of this host's devices: {listed}"
    if not any(holder.server for holder in holders):
        return used
    return (
        f"{used}. Start nova-compute again and move or shelve the servers"
        " (`nova-accel remove apply --move cold`, or `--shelve`), delete"
        " them, or keep them on this host with --keep-servers"
    )
