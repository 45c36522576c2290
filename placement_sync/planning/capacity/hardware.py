# SPDX-License-Identifier: Apache-2.0
"""Hosts that do not exist yet, and cards in another mode.

The options ``--add`` and ``--set`` describe them as ``KEY=VALUE,...``.
"""

import dataclasses
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry.occupancy import (
    INSTANCE_PREFIX,
    PLACE_PREFIX,
    UNALLOCATED_PREFIX,
)
from nova_accel.geometry.scheduling import card_state
from nova_accel.model import names, providers
from placement_sync.fleet.flavors import lookup, offered_devices
from placement_sync.planning import card_claims, snapshot

ADD, SET = "--add", "--set"
_ADD_FORM = "gpu=MODEL[,hosts=N][,cards=N][,vcpus=N][,memory=MB]"
_MODE_FORM = "[,mode=equal|mixed|mig][,vfs=N][,instances=KIND/KIND...]"
_SET_FORM = "host=HOST[,card=ADDRESS]"
_MODE_KEYS = ("mode", "vfs", "instances")
_LAYOUTS = {
    layout.value: layout
    for layout in (model.Layout.EQUAL, model.Layout.MIXED, model.Layout.MIG)
}
# A model with its memory, which nova-accel's own names do not have.
_WITH_MEMORY = re.compile(
    r"(?P<model>.+)-(?P<gb>[0-9]+)(?:GB)?", re.IGNORECASE
)
_MB_PER_GB = 1024
# Most hosts and cards of one option: a typing error must not fill memory.
_MOST = {"hosts": 10_000, "cards": 64, "vfs": vgpu_types.MAX_TIME_SLICED}
# Traits that depend on the mode of a card.
_MODE_PREFIXES = (
    *(names.LAYOUT_PREFIX, names.SUPPORTED_PREFIX),
    *(PLACE_PREFIX, UNALLOCATED_PREFIX, INSTANCE_PREFIX),
    *names.PROFILE_PREFIXES,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardMode:
    """Mode of a card: layout, virtual functions, GPU instances.

    ``layout`` is None for that which a card has. Without ``instances`` a
    card in MIG mode gets them with its servers.
    """

    layout: model.Layout | None = None
    vfs: int = vgpu_types.MAX_TIME_SLICED
    instances: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddedHosts:
    """Equal hosts to add; ``note`` says how their model was chosen."""

    gpu: vgpu_types.CatalogGpu
    mode: CardMode
    hosts: int = 1
    cards: int = 1
    capacities: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCards:
    """Cards of a host to change; all of them without a ``card``."""

    host: str
    card: str
    mode: CardMode


def parse_added(text: str, catalog: vgpu_types.Catalog) -> AddedHosts:
    """Return the hosts of an ``--add``.

    :raises MalformedError: it can't be used.
    """
    form = _ADD_FORM + _MODE_FORM
    keys = ("gpu", "hosts", "cards", "vcpus", "memory", *_MODE_KEYS)
    values = _parse_pairs(ADD, text, form, keys)
    if "gpu" not in values:
        raise errors.MalformedError(ADD, text, form)
    gpu, note = find_gpu(values["gpu"], catalog)
    numbers: dict[str, int] = {
        key: _parse_number(ADD, key, values[key])
        for key in ("hosts", "cards", "vcpus", "memory")
        if key in values
    }
    units = (("vcpus", "VCPU"), ("memory", "MEMORY_MB"))
    return AddedHosts(
        gpu=gpu,
        mode=_parse_mode(ADD, values),
        hosts=numbers.get("hosts", 1),
        cards=numbers.get("cards", 1),
        capacities={
            name: numbers[key] for key, name in units if key in numbers
        },
        note=note,
    )


def parse_changed(text: str) -> ChangedCards:
    """Return the cards of a ``--set``.

    :raises MalformedError: it can't be used.
    """
    form = _SET_FORM + _MODE_FORM
    values = _parse_pairs(SET, text, form, ("host", "card", *_MODE_KEYS))
    if "host" not in values or not values.keys() & set(_MODE_KEYS):
        raise errors.MalformedError(SET, text, form)
    return ChangedCards(
        host=values["host"],
        card=values.get("card", ""),
        mode=_parse_mode(SET, values),
    )


def _parse_pairs(
    option: str, text: str, form: str, keys: Sequence[str]
) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in text.split(","):
        key, sign, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not (sign and value) or key not in keys or key in values:
            raise errors.MalformedError(option, text, form)
        values[key] = value
    return values


def _parse_number(option: str, key: str, text: str) -> int:
    most = _MOST.get(key, providers.MAX_TOTAL)
    # int() takes any number of digits, and needs long for many.
    is_short = text.isdecimal() and len(text) <= len(str(most))
    if not is_short or not 1 <= int(text) <= most:
        raise errors.MalformedError(
            f"{option} {key}", text, f"a number from 1 to {most}"
        )
    return int(text)


def _parse_mode(option: str, values: Mapping[str, str]) -> CardMode:
    instances = tuple(filter(None, values.get("instances", "").split("/")))
    mode = values.get("mode", "mig" if instances else "")
    if mode and mode not in _LAYOUTS:
        raise errors.MalformedError(
            f"{option} mode", mode, f"one of {', '.join(_LAYOUTS)}"
        )
    layout = _LAYOUTS.get(mode)
    if instances and layout is not model.Layout.MIG:
        raise errors.MalformedError(
            f"{option} instances",
            values["instances"],
            "nothing without mode=mig",
        )
    vfs = vgpu_types.MAX_TIME_SLICED
    if "vfs" in values:
        vfs = _parse_number(option, "vfs", values["vfs"])
    return CardMode(layout=layout, vfs=vfs, instances=instances)


def find_gpu(
    name: str, catalog: vgpu_types.Catalog
) -> tuple[vgpu_types.CatalogGpu, str]:
    """Return the model of a name, and a note if several have it.

    A name is a key of the catalog, a product, or a key with the memory in
    GB: ``A100-80`` is the first model of that kind and memory.

    :raises MalformedError: there is no such model.
    """
    gpus = catalog.gpus()
    slug = _normalize(name)
    for gpu in gpus:
        if slug in (_normalize(gpu.key), _normalize(gpu.product)):
            return gpu, ""
    match = _WITH_MEMORY.fullmatch(name.strip())
    similar = [
        gpu
        for gpu in gpus
        if match
        and gpu.is_complete
        and _normalize(gpu.key).startswith(_normalize(match["model"]))
        and f"{match['gb']}GB" in _list_sizes(gpu)
    ]
    if not similar:
        raise errors.MalformedError(
            f"{ADD} gpu", name, f"a model of {', '.join(g.key for g in gpus)}"
        )
    first, *others = similar
    note = f"{name} was taken as {first.key}, {first.product}"
    if others:
        choices = ", ".join(f"{gpu.key} is {gpu.product}" for gpu in others)
        note += f"; {choices}"
    return first, note


def _list_sizes(gpu: vgpu_types.CatalogGpu) -> set[str]:
    """Return the sizes of a model's memory: in its name, else reported."""
    sizes = {
        word
        for word in gpu.product.split()
        if word.endswith("GB") and word.removesuffix("GB").isdecimal()
    }
    return sizes or {f"{gpu.memory_mb // _MB_PER_GB}GB"}


def _normalize(name: str) -> str:
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    return text.removeprefix("nvidia").removeprefix("tesla")


def _build_card(
    option: str,
    gpu: vgpu_types.CatalogGpu,
    layout: model.Layout,
    mode: CardMode,
    catalog: vgpu_types.Catalog,
) -> tuple[frozenset[str], Mapping[str, providers.ClassCapacity]]:
    """Return traits and capacities of an empty card in a mode.

    :raises MalformedError: its model has no such mode or instances.
    """
    modes = [
        name
        for name, is_possible in {
            "equal": True,
            "mixed": gpu.has_mixed,
            "mig": bool(gpu.kinds),
        }.items()
        if is_possible
    ]
    if not (gpu.is_complete and catalog.profiles_of(gpu.key)):
        raise errors.MalformedError(
            f"{option} gpu", gpu.key, "a model whose profiles the catalog has"
        )
    if layout.value not in modes:
        raise errors.MalformedError(
            f"{option} mode",
            layout.value,
            f"a mode of {gpu.key}: {', '.join(modes)}",
        )
    try:
        return card_claims.build_empty(
            catalog, gpu, layout, mode.vfs, mode.instances
        )
    except ValueError as error:
        kinds = ", ".join(kind.name for kind in gpu.kinds)
        raise errors.MalformedError(
            f"{option} instances",
            "/".join(mode.instances),
            f"GPU instances that have room together on {gpu.key}, of {kinds}",
        ) from error


# -- changes of a snapshot --------------------------------------------------


def add_hosts(added: AddedHosts, planned: snapshot.CloudSnapshot) -> None:
    """Add hosts to a snapshot, with names that no host has.

    :raises MalformedError: the model has no such mode.
    """
    layout = added.mode.layout or model.Layout.EQUAL
    traits, capacities = _build_card(
        ADD, added.gpu, layout, added.mode, planned.types.catalog
    )
    present = {host.name for host in planned.hosts.values()}
    number = 0
    for _ in range(added.hosts):
        number += 1
        while (name := f"new-{added.gpu.key.lower()}-{number}") in present:
            number += 1
        planned.add_host(
            build_host(
                name,
                [(traits, capacities)] * added.cards,
                {
                    key: providers.ClassCapacity(capacity=total)
                    for key, total in added.capacities.items()
                },
            )
        )


def build_host(
    name: str,
    cards: Iterable[
        tuple[frozenset[str], Mapping[str, providers.ClassCapacity]]
    ],
    capacities: Mapping[str, providers.ClassCapacity],
) -> snapshot.PlannedHost:
    """Return a host with cards of some traits and capacities."""
    root = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    devices = []
    for number, (traits, of_card) in enumerate(cards, 1):
        address = f"0000:{number:02x}:00.0"
        own = names.provider_uuid(root, address)
        devices.append(
            offered_devices.OfferedDevice(
                uuid=own,
                name=names.provider_name(name, address),
                host=name,
                root=root,
                parent=root,
                card=own,
                model=min(
                    t for t in traits if t.startswith(names.MODEL_PREFIX)
                ),
                traits=traits,
                capacities=of_card,
            )
        )
    return snapshot.PlannedHost(
        uuid=root,
        name=name,
        capacities=capacities,
        devices={device.uuid: device for device in devices},
    )


def find_cards(
    changed: ChangedCards, planned: snapshot.CloudSnapshot
) -> dict[str, offered_devices.OfferedDevice]:
    """Return the cards of a change, by uuid.

    :raises MalformedError: there is no such host or card, or no model of
        the catalog among its cards.
    """
    devices = lookup.select_host(planned.build_fleet().devices, changed.host)
    cards = {
        device.uuid: device
        for device in devices
        if planned.types.gpu_of(device) is not None
        and not device.is_unavailable
    }
    chosen = {
        uuid: device
        for uuid, device in cards.items()
        if changed.card in ("", device.address)
    }
    if not chosen:
        present = ", ".join(sorted(d.address for d in cards.values()))
        raise errors.MalformedError(
            f"{SET} card",
            changed.card or changed.host,
            "a card of a model in the catalog that takes servers:"
            f" {present or 'the host has none'}",
        )
    return chosen


def change_cards(
    changed: ChangedCards,
    cards: Mapping[str, offered_devices.OfferedDevice],
    planned: snapshot.CloudSnapshot,
) -> None:
    """Replace cards of a snapshot by empty ones in another mode.

    :param cards: see ``find_cards``.
    :raises MalformedError: their model has no such mode.
    """
    planned.release(cards)
    for device in cards.values():
        gpu = planned.types.gpu_of(device)
        if gpu is None:  # find_cards leaves these out
            continue
        layout = (
            changed.mode.layout
            or card_state.parse_layout(device.traits)
            or model.Layout.EQUAL
        )
        traits, capacities = _build_card(
            SET, gpu, layout, changed.mode, planned.types.catalog
        )
        host = planned.hosts[device.root]
        former = {t for t in device.traits if not _is_of_mode(t)}
        empty = dataclasses.replace(
            device,
            traits=frozenset(former | set(filter(_is_of_mode, traits))),
            capacities=capacities,
            allocations=None,
        )
        planned.add_host(
            dataclasses.replace(
                host, devices={**host.devices, device.uuid: empty}
            )
        )


def _is_of_mode(trait: str) -> bool:
    return trait.startswith(_MODE_PREFIXES)
