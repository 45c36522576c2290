# SPDX-License-Identifier: Apache-2.0
"""Random provider trees of one host, and changes by an operator.

A seed reproduces a tree. Addresses, classes and traits are few: two trees
of a host have much in common.
"""

import dataclasses
import random
import uuid
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.model import names, providers

CARDS = ("0000:3b:00.0", "0000:41:00.0", "0000:5e:00.0", "0000:af:00.0")
# A device off the PCI bus: its name does not contain its address.
OFF_PCI = "mtty"
PARTS = {
    names.region_address(card, number): card
    for card in CARDS[:2]
    for number in (0, 1)
}
ADDRESSES = (*CARDS, OFF_PCI, *PARTS)
CLASSES = (
    "VGPU",
    "PGPU",
    "FPGA",
    names.GPU_MEMORY_CLASS,
    names.MDEV_CLASS,
    names.QAT_VF_CLASS,
)
OWNED = frozenset({names.OWNER_TRAIT, names.NOVA_OWNER_TRAIT})
_LOADED = f"{names.FUNCTION_PREFIX}0BAD"
OWN_TRAITS = (
    "CUSTOM_VGPU_TEST_1Q",
    "CUSTOM_VGPU_TEST_2Q",
    "CUSTOM_ACCELERATOR_NUMA_0",
    "CUSTOM_ACCELERATOR_NUMA_1",
    "CUSTOM_QAT_SYM",
    _LOADED,
    names.DRAINED_TRAIT,
    names.MISSING_TRAIT,
    names.FAULTED_TRAIT,
)
OPERATORS = ("CUSTOM_RACK_7", "CUSTOM_GOLD", "HW_GPU_API_VULKAN")
# Totals are never below operators' reserved amounts, so that no amount is
# lost in a smaller device.
_TOTALS = (2, 8)
_FLOORS = (1, 2)

Floors = Mapping[tuple[str, str], int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The desired tree of a host, and the host state that it results from."""

    tree: providers.ProviderTree
    host: model.HostState


def new_root(name: str) -> providers.ProviderRoot:
    """Return a compute node of that name."""
    own = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    return providers.ProviderRoot(name=name, uuid=own)


def own_uuids(root: providers.ProviderRoot) -> dict[str, str]:
    """Return the uuids of all possible providers of the library -> address."""
    return {names.provider_uuid(root.uuid, a): a for a in ADDRESSES}


def draw_addresses(dice: random.Random) -> list[str]:
    """Return some devices; with a part, also its card."""
    some = {a for a in ADDRESSES if dice.random() < 0.55}
    return [a for a in ADDRESSES if a in some and _whole(a) in some]


def _whole(address: str) -> str:
    return PARTS.get(address, address)


def draw_node(
    dice: random.Random, root: providers.ProviderRoot, address: str
) -> providers.ProviderNode:
    """Return a provider of the desired tree."""
    parent = PARTS.get(address)
    amount = dice.choice((0, 1, 1, 1, 2, 3))
    traits = {t for t in OWN_TRAITS if dice.random() < 0.25}
    if dice.random() < 0.1:
        traits.add(f"CUSTOM_VGPU_NEW_{dice.randrange(1 << 32):08X}")
    return providers.ProviderNode(
        name=names.provider_name(root.name, address),
        uuid=names.provider_uuid(root.uuid, address),
        parent=names.provider_uuid(root.uuid, parent) if parent else root.uuid,
        inventories={
            name: draw_record(dice) for name in dice.sample(CLASSES, amount)
        },
        traits=OWNED | traits,
        unread_traits=(names.FUNCTION_PREFIX,) if dice.random() < 0.1 else (),
    )


def draw_record(dice: random.Random) -> providers.Inventory:
    """Return an inventory record, of which the library may reserve units."""
    total = dice.randint(*_TOTALS)
    own = dice.choice((0, 0, dice.randint(0, total), total))
    record = providers.Inventory(total=total, max_unit=total)
    return record.with_own_reserved(own)


def draw_tree(
    dice: random.Random,
    root: providers.ProviderRoot,
    addresses: Iterable[str],
) -> providers.ProviderTree:
    """Return the providers of these devices."""
    nodes = [draw_node(dice, root, address) for address in addresses]
    return providers.ProviderTree(
        root=root, nodes=tuple(sorted(nodes, key=lambda n: n.name))
    )


def draw_desired(
    dice: random.Random, root: providers.ProviderRoot
) -> DesiredState:
    """Return a tree, and devices that could not be read."""
    present = draw_addresses(dice)
    unknown = frozenset(
        address
        for address in CARDS
        if address not in present and dice.random() < 0.1
    )
    return DesiredState(
        tree=draw_tree(dice, root, present),
        host=model.HostState(unknown=unknown, complete=dice.random() > 0.07),
    )


def draw_change(
    dice: random.Random, root: providers.ProviderRoot, desired: DesiredState
) -> DesiredState:
    """Return a desired state that differs from another in some devices."""
    fresh = draw_desired(dice, root)
    changed = set(dice.sample(ADDRESSES, dice.randint(1, 3)))
    changed |= {part for part, card in PARTS.items() if card in changed}
    uuids = {names.provider_uuid(root.uuid, a) for a in changed}
    nodes = [n for n in desired.tree.nodes if n.uuid not in uuids]
    nodes += [n for n in fresh.tree.nodes if n.uuid in uuids]
    present = {root.uuid, *(n.uuid for n in nodes)}
    nodes = [n for n in nodes if n.parent in present]
    unknown = frozenset(
        address
        for address in fresh.host.unknown
        if names.provider_uuid(root.uuid, address) not in present
    )
    nodes.sort(key=lambda n: n.name)
    return DesiredState(
        tree=providers.ProviderTree(root=root, nodes=tuple(nodes)),
        host=dataclasses.replace(fresh.host, unknown=unknown),
    )


def draw_floors(
    dice: random.Random, tree: providers.ProviderTree
) -> dict[tuple[str, str], int]:
    """Return an operator's reserved amounts, by provider and class."""
    return {
        (node.uuid, name): dice.randint(*_FLOORS)
        for node in tree.nodes
        for name in node.inventories
        if dice.random() < 0.2
    }


def recorded(
    node: providers.ProviderNode, floors: Floors, dice: random.Random
) -> tuple[dict[str, providers.Inventory], frozenset[str]]:
    """Return records and traits of a provider in Placement.

    An operator's reserved amount is in the record or, if the library
    reserves as much, in a trait.
    """
    records = {}
    traits = set(node.traits)
    for name, desired_record in node.inventories.items():
        floor = floors.get((node.uuid, name), 0)
        reserved = max(floor, desired_record.own_reserved)
        if floor and reserved == desired_record.own_reserved:
            traits.add(memory(name, floor))
        records[name] = dataclasses.replace(
            desired_record,
            reserved=reserved,
            allocation_ratio=dice.choice((1.0, 1.0, 2.0)),
        )
    traits |= {t for t in OPERATORS if dice.random() < 0.2}
    return records, frozenset(traits)


def memory(name: str, floor: int) -> str:
    """Return the trait that contains an operator's reserved amount."""
    return f"{names.RESERVED_PREFIX}{name.removeprefix(names.CUSTOM)}_{floor}"
