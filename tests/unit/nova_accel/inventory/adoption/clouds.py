# SPDX-License-Identifier: Apache-2.0
"""Hosts under Nova's own vGPU support, drawn at random."""

import dataclasses
import itertools
import uuid
from collections.abc import Iterator
from typing import ClassVar

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.inventory.adoption import (
    planner,
    planning,
    records,
    reshape,
)
from nova_accel.model import domains, names, providers

ROOT = providers.ProviderRoot(
    name="host1", uuid="aaaaaaaa-0000-4000-8000-000000000001"
)
_SIZES = {"4Q": 4096, "8Q": 8192}


@dataclasses.dataclass(frozen=True)
class Cloud:
    """A host as it is observed, and its providers in Placement."""

    source: ClassVar[records.Source] = records.Source.NOVA_MDEV
    technology: ClassVar[str] = "mdev"

    observed: planner.Observed
    stored: reshape.Stored

    @property
    def plan(self) -> records.Plan:
        return planning.build(self.observed, self.source)

    def claims(self) -> Iterator[model.Claim]:
        """Yield the claims of the adopted servers."""
        for server in self.plan.servers:
            for part in server.partitions:
                yield model.Claim(
                    consumer=server.uuid,
                    provider=part.provider,
                    device=part.device,
                    profile=part.profile,
                    slot=part.slot,
                    parent=part.parent,
                    handle=part.handle,
                    technology=self.technology,
                    state=model.ClaimState.MADE,
                )

    def with_own_providers(self) -> reshape.Stored:
        """Return Placement once nova-accel has reported its providers.

        Before the allocations are moved: the claims have been restored.
        """
        tree = tree_builder.build_tree(
            ROOT, self.observed.host, self.observed.rules, self.claims()
        )
        own = {
            node.uuid: reshape.StoredProvider(
                name=node.name,
                parent=node.parent,
                inventories=node.inventories,
                traits=node.traits,
            )
            for node in tree.nodes
        }
        return dataclasses.replace(
            self.stored, providers={**self.stored.providers, **own}
        )


def build_card(
    number: int, on_vfs: bool, name: str, handles: list[str], room: int
) -> model.Device:
    """Return a card with some mdevs of one type, and room for more."""
    address = f"0000:{0x3B + number:02x}:00.0"
    total = len(handles) + room
    vfs = tuple(f"0000:{0x3B + number:02x}:01.{n}" for n in range(total))
    parents = vfs if on_vfs else (address,) * total
    charges = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": _SIZES[name]}
    return model.Device(
        address=address,
        plugin="nvidia_mdev",
        technology="mdev",
        vendor="nvidia",
        model="T4",
        resource_class="VGPU",
        counters={
            "VGPU": total,
            "CUSTOM_GPU_MEMORY_MB": total * _SIZES[name],
        },
        slots=vfs if on_vfs else names.slot_names(total),
        profiles=(
            model.Profile(
                name=f"T4-{name}",
                trait=f"CUSTOM_VGPU_NVIDIA_T4_{name}",
                charges=charges,
                available=room,
                handles={p: f"nvidia-{_SIZES[name]}" for p in parents},
            ),
        ),
        partitions=tuple(
            model.Partition(profile=f"T4-{name}", parent=parent, handle=handle)
            for parent, handle in zip(parents, handles, strict=False)
        ),
    )


@st.composite
def natives(draw: st.DrawFn) -> Cloud:
    """Draw a host whose servers have one or several vGPUs of a card."""
    uuids = (
        str(uuid.uuid5(uuid.UUID(ROOT.uuid), str(number)))
        for number in itertools.count()
    )
    cards = []
    resource_class = draw(st.sampled_from(["VGPU", "CUSTOM_NVIDIA_SMALL"]))
    servers: dict[str, planner.NovaServer] = {}
    guests: list[domains.Domain] = []
    allocations: dict[str, records.Allocations] = {}
    stored: dict[str, reshape.StoredProvider] = {}
    all_natives: list[records.NativeProvider] = []
    for number in range(draw(st.integers(1, 3))):
        on_vfs = draw(st.booleans())
        sizes = draw(st.lists(st.integers(1, 1 if on_vfs else 3), max_size=4))
        handles = [next(uuids) for _ in range(sum(sizes))]
        card = build_card(
            number,
            on_vfs,
            draw(st.sampled_from([*_SIZES])),
            handles,
            draw(st.integers(0 if sizes else 1, 2)),
        )
        cards.append(card)
        by_parent = {
            parent: draw(
                _native(next(uuids), parent, len(card.slots), resource_class)
            )
            for parent in (card.slots if on_vfs else (card.address,))
        }
        all_natives += by_parent.values()
        unassigned = list(card.partitions)
        for size in sizes:
            own, unassigned = unassigned[:size], unassigned[size:]
            server = next(uuids)
            servers[server] = planner.NovaServer(
                uuid=server,
                name=f"vm-{len(servers)}",
                specs={
                    f"resources{draw(st.sampled_from(['', '1', '_X']))}"
                    f":{resource_class}": str(size),
                    "hw:cpu_policy": "shared",
                },
            )
            guests.append(
                domains.Domain(
                    uuid=server,
                    name=f"instance-{len(servers)}",
                    is_running=draw(st.booleans()),
                    mdevs=frozenset(p.handle for p in own),
                )
            )
            allocations[server] = {
                by_parent[own[0].parent].uuid: {resource_class: size}
            }
    node = {
        "VCPU": providers.Inventory(
            total=draw(st.integers(1, 4)), max_unit=64, allocation_ratio=1.5
        )
    }
    stored[ROOT.uuid] = reshape.StoredProvider(
        name=ROOT.name, parent="", inventories=node
    )
    for native in all_natives:
        stored[native.uuid] = reshape.StoredProvider(
            name=native.name,
            parent=ROOT.uuid,
            inventories=native.inventories,
            traits=native.traits,
            aggregates=native.aggregates,
        )
    for _ in range(draw(st.integers(0, 2))):  # servers without vGPUs
        allocations[next(uuids)] = {}
    return Cloud(
        observed=planner.Observed(
            root=ROOT,
            host=model.HostState(devices=tuple(cards)),
            rules=policy.DeviceRules(),
            domains=tuple(guests),
            servers=servers,
            natives=tuple(all_natives),
            allocations={c: a for c, a in allocations.items() if a},
        ),
        stored=reshape.Stored(
            providers=stored,
            allocations={
                consumer: {ROOT.uuid: {"VCPU": 1}, **of_cards}
                for consumer, of_cards in allocations.items()
            },
        ),
    )


@st.composite
def _native(
    draw: st.DrawFn, own: str, parent: str, total: int, resource_class: str
) -> records.NativeProvider:
    name = parent.replace(":", "_").replace(".", "_")
    return records.NativeProvider(
        uuid=own,
        name=f"{ROOT.name}_pci_{name}",
        address=parent,
        inventories={
            resource_class: providers.Inventory(total=total, max_unit=total)
        },
        traits=frozenset(
            draw(st.sets(st.sampled_from(["OWNER_NOVA", "CUSTOM_RACK_1"])))
        ),
        aggregates=frozenset(
            draw(st.sets(st.sampled_from(["agg-1", "agg-2"])))
        ),
    )
