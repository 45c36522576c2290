# SPDX-License-Identifier: Apache-2.0
"""Hosts under Nova's own `[pci] device_spec`, drawn at random."""

import dataclasses
import itertools
import uuid

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory.adoption import (
    alias_flavors,
    planner,
    records,
    reshape,
)
from nova_accel.model import domains, providers
from tests.support.hosts import shapes
from tests.unit.nova_accel.inventory.adoption import clouds

ROOT = clouds.ROOT
CLASS, VF_CLASS = "CUSTOM_PCI_10DE_1E07", "CUSTOM_PCI_1002_692F"
ALIASES = (
    alias_flavors.Alias(name="gpu", vendor_id="10de", product_id="1e07"),
    alias_flavors.Alias(name="audio", vendor_id="10de", product_id="10f7"),
    alias_flavors.Alias(name="nic", vendor_id="10de", product_id="1533"),
    alias_flavors.Alias(name="vf", kind="type-VF"),
)


def build_card(number: int) -> model.Device:
    """Return a whole GPU with an audio function."""
    address = f"0000:{0x3B + number:02x}:00.0"
    return shapes.whole_card(
        address,
        members=(f"{address[:-1]}1",),
        profiles=(
            model.Profile(
                name="10de:1e07",
                trait="CUSTOM_GPU_PCI_10DE_1E07",
                charges={"PGPU": 1},
                available=1,
            ),
        ),
    )


def _build_vf_card(number: int, count: int) -> model.Device:
    address = f"0000:{0x3B + number:02x}:00.0"
    vfs = tuple(f"0000:{0x3B + number:02x}:02.{n}" for n in range(count))
    return model.Device(
        address=address,
        plugin="amd_mxgpu",
        technology="vf",
        vendor="amd",
        model="S7150",
        resource_class="VGPU",
        counters={"VGPU": count},
        slots=vfs,
        profiles=(
            model.Profile(
                name="1002:6929-VF",
                trait="CUSTOM_VGPU_AMD_6929",
                charges={"VGPU": 1},
                available=count,
                handles=dict.fromkeys(vfs, "1002:692f"),
            ),
        ),
    )


def describe(
    address: str, product: str = "1e07"
) -> alias_flavors.NovaFunction:
    """Return a function as Nova's line describes it."""
    return alias_flavors.NovaFunction(
        address=address,
        vendor_id="10de",
        product_id=product,
        kind="type-VF" if product == "692f" else "type-PCI",
    )


def build_native(card: model.Device, own: str) -> records.NativeProvider:
    """Return Nova's provider of a card; a VF is one of its units."""
    is_whole = card.technology == "passthrough"
    total = len(card.slots)
    return records.NativeProvider(
        uuid=own,
        name=f"{ROOT.name}_{card.address.upper()}",
        address=card.address,
        inventories={
            CLASS if is_whole else VF_CLASS: providers.Inventory(
                total=total, max_unit=total
            )
        },
        traits=frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"}),
        aggregates=frozenset({"agg-1"}),
    )


@dataclasses.dataclass(frozen=True)
class Cloud(clouds.Cloud):
    """Host whose servers have functions of Nova's own."""

    source = records.Source.NOVA_PCI
    technology = "passthrough"


@st.composite
def natives(draw: st.DrawFn) -> Cloud:
    """Draw a host whose servers have whole GPUs, VFs, or both.

    With ``report_in_placement`` of Nova's, and without.
    """
    uuids = (
        str(uuid.uuid5(uuid.UUID(ROOT.uuid), str(number)))
        for number in itertools.count()
    )
    cards = [
        build_card(number)
        if draw(st.booleans())
        else _build_vf_card(number, draw(st.integers(1, 4)))
        for number in range(draw(st.integers(1, 4)))
    ]
    is_reported = draw(st.booleans())
    native = {c.address: build_native(c, next(uuids)) for c in cards}
    units = [(card, slot) for card in cards for slot in card.slots]
    owners: dict[str, list[tuple[model.Device, str]]] = {}
    pool = [next(uuids) for _ in range(3)]
    for unit in units:
        owner = draw(st.sampled_from(["", *pool]))
        if owner:
            owners.setdefault(owner, []).append(unit)
    allocations = {
        owner: records.sum_amounts(
            (
                native[card.address].uuid,
                dict.fromkeys(native[card.address].inventories, 1),
            )
            for card, _ in taken
        )
        for owner, taken in owners.items()
        if is_reported
    }
    natives_ = tuple(native.values()) if is_reported else ()
    node = {"VCPU": providers.Inventory(total=64, max_unit=64)}
    stored = {
        ROOT.uuid: reshape.StoredProvider(
            name=ROOT.name, parent="", inventories=node
        ),
        **{
            n.uuid: reshape.StoredProvider(
                name=n.name,
                parent=ROOT.uuid,
                inventories=n.inventories,
                traits=n.traits,
                aggregates=n.aggregates,
            )
            for n in natives_
        },
    }
    return Cloud(
        observed=planner.Observed(
            root=ROOT,
            host=model.HostState(devices=tuple(cards)),
            rules=policy.DeviceRules(),
            domains=tuple(
                domains.Domain(
                    uuid=owner,
                    name=f"instance-{owner[:8]}",
                    is_running=draw(st.booleans()),
                    functions=frozenset(slot for _, slot in taken),
                )
                for owner, taken in owners.items()
            ),
            servers={
                owner: planner.NovaServer(
                    uuid=owner, name="vm", specs=_build_specs(taken)
                )
                for owner, taken in owners.items()
            },
            natives=natives_,
            allocations=allocations,
            functions={
                slot: describe(
                    slot,
                    "1e07" if card.technology == "passthrough" else "692f",
                )
                for card, slot in units
            },
            aliases=ALIASES,
        ),
        stored=reshape.Stored(
            providers=stored,
            allocations={
                owner: {ROOT.uuid: {"VCPU": 1}, **allocations.get(owner, {})}
                for owner in pool
            },
        ),
    )


def _build_specs(taken: list[tuple[model.Device, str]]) -> dict[str, str]:
    names = [
        "gpu" if card.technology == "passthrough" else "vf"
        for card, _ in taken
    ]
    return alias_flavors.build(sorted(names)) | {"hw:cpu_policy": "shared"}
