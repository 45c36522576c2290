# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts with claims of servers, for the check of the filter.

A card is a ``model.Device`` as its driver describes it. Its partitions are
those that ``claim_plan.plan`` returned for the servers started there.
"""

import dataclasses
import itertools
import uuid
from collections.abc import Iterable, Mapping
from random import Random

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled

PLENTY = 1 << 16
EQUAL, MIXED, MIG, ANY = (
    model.Layout.EQUAL,
    model.Layout.MIXED,
    model.Layout.MIG,
    model.Layout.ANY,
)
# GPU and layout of the NVIDIA cards that are drawn.
GPUS = (
    ("T4", EQUAL),
    ("L40S", EQUAL),
    ("L40S", MIXED),
    ("A16", MIXED),
    ("A30", MIXED),
    ("A30", MIG),
    ("A100", MIXED),
    ("A100", MIG),
    ("H100", MIG),
    ("RTXPRO6000", MIG),
)
FUNCTIONS = ("1f", "2f")


def nvidia_card(
    address: str, gpu: str, layout: model.Layout, chance: Random
) -> model.Device:
    """Return an empty NVIDIA card; one in MIG mode may have instances."""
    facts = scheduled.CATALOG.gpu(gpu)
    assert facts is not None
    is_mig = layout is MIG
    device = model.Device(
        address=address,
        plugin="nvidia",
        technology=chance.choice(["vendor-vfio", "mdev"]),
        vendor="NVIDIA",
        model=gpu,
        resource_class=names.GPU_CLASS,
        counters={
            names.GPU_MEMORY_CLASS: facts.memory_mb,
            **({names.MIG_SLICE_CLASS: facts.mig_slices} if is_mig else {}),
        },
        # A VF's address is its handle, and no other card has it.
        slots=tuple(f"{address}/{n:02d}" for n in range(32)),
        profiles=tuple(
            model.Profile(
                name=vgpu_type.name,
                trait=vgpu_type.trait,
                charges=scheduled.CATALOG.charges(vgpu_type),
                available=PLENTY,
                size=vgpu_type.framebuffer_mb,
                limit=vgpu_type.limit_mixed
                if layout is MIXED
                else vgpu_type.limit,
                span=vgpu_type.span if layout is MIXED else 0,
                starts=vgpu_type.starts_mixed if layout is MIXED else (),
                instance=vgpu_type.instance,
                per_instance=vgpu_type.per_instance,
            )
            for vgpu_type in scheduled.CATALOG.profiles_of(gpu)
            if bool(vgpu_type.instance) == is_mig
        ),
        traits=frozenset({names.model_trait("10de", gpu)}),
        geometry=model.Geometry(
            layout=layout,
            region=(
                0
                if layout is EQUAL
                else facts.mig_region
                if is_mig
                else facts.region
            ),
            kinds=facts.kinds if is_mig else (),
            is_dynamic=is_mig,
        ),
    )
    if is_mig and chance.random() < 0.3:
        device = _with_fixed_instances(device, chance)
    return device


def _with_fixed_instances(
    device: model.Device, chance: Random
) -> model.Device:
    """Return a card whose operator made its GPU instances beforehand."""
    taken: set[int] = set()
    slices = device.counters[names.MIG_SLICE_CLASS]
    made: list[model.Instance] = []
    kinds = [k for k in device.geometry.kinds if "+" not in k.name]
    for _ in range(8):
        kind = chance.choice(kinds)
        start = chance.choice(kind.starts)
        span = range(start, start + kind.size)
        if kind.slices > slices or taken.intersection(span):
            continue
        taken.update(span)
        slices -= kind.slices
        made.append(
            model.Instance(
                kind=kind.name,
                handle=str(len(made)),
                span=model.Span(start=start, size=kind.size),
            )
        )
    return dataclasses.replace(
        device,
        geometry=dataclasses.replace(
            device.geometry, instances=tuple(made), is_dynamic=False
        ),
    )


def plain_card(
    address: str, technology: str, resource_class: str, slots: int, name: str
) -> model.Device:
    """Return a card that counters alone bound: whole, or of VFs or mdevs."""
    return model.Device(
        address=address,
        plugin=technology,
        technology=technology,
        vendor="",
        model=name,
        resource_class=resource_class,
        counters={resource_class: slots},
        slots=(
            (address,)
            if technology == "passthrough"
            else tuple(f"{address}/{n}" for n in range(slots))
        ),
        profiles=(
            model.Profile(
                name=name,
                trait=names.custom_name("GPU", name),
                charges={resource_class: 1},
                available=slots,
            ),
        ),
    )


def region(address: str, number: int, function: str) -> model.Device:
    """Return a region of an FPGA that holds a function."""
    own = names.region_address(address, number)
    return dataclasses.replace(
        plain_card(own, "fpga", names.FPGA_CLASS, 1, "region"),
        traits=frozenset(
            {names.REGION_TRAIT, names.fpga_function_trait(function)}
        ),
        parent=address,
        region=model.Region(card=address, number=number, function=function),
    )


def random_cards(address: str, chance: Random) -> list[model.Device]:
    """Return a card, or the regions of one."""
    kind = chance.randrange(10)
    if kind < 7:
        gpu, layout = chance.choice(GPUS)
        return [nvidia_card(address, gpu, layout, chance)]
    if kind == 7:
        return [region(address, n, chance.choice(FUNCTIONS)) for n in (0, 1)]
    return [
        chance.choice(
            [
                plain_card(
                    address, "passthrough", names.WHOLE_GPU_CLASS, 1, "V100"
                ),
                plain_card(address, "vf", names.QAT_VF_CLASS, 3, "QAT"),
                plain_card(address, "mdev", names.MDEV_CLASS, 3, "MTTY"),
            ]
        )
    ]


class Host:
    """A compute node: its cards, and the claims of its servers."""

    def __init__(self, name: str, devices: Iterable[model.Device]) -> None:
        self.name = name
        self.root = providers.ProviderRoot(
            name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        )
        self.devices = tuple(map(_with_available, devices))
        self.claims: dict[str, tuple[model.Claim, ...]] = {}

    @classmethod
    def random(cls, name: str, chance: Random) -> "Host":
        """Return a host with two to four cards on two NUMA nodes."""
        devices: list[model.Device] = []
        for number in range(chance.randint(2, 4)):
            cards = random_cards(f"0000:{number + 65:02x}:00.0", chance)
            if devices and chance.random() < 0.5:
                # Another card like one of the host's is the usual case.
                twin = chance.choice(devices)
                if twin.region is None:
                    address = cards[0].address.partition("/")[0]
                    cards = [_twin(twin, address)]
            node = names.custom_name("ACCELERATOR", "NUMA", str(number % 2))
            devices += [
                dataclasses.replace(
                    card,
                    traits=frozenset(
                        t
                        for t in card.traits
                        if not t.startswith(names.NUMA_PREFIX)
                    )
                    | {node},
                )
                for card in cards
            ]
        return cls(name, devices)

    def copy(self) -> "Host":
        """Return a host that may be changed on its own."""
        host = Host(self.name, ())
        host.devices, host.claims = self.devices, dict(self.claims)
        return host

    def tree(self) -> providers.ProviderTree:
        """Return the provider tree that the host publishes."""
        return tree_builder.build_tree(
            self.root,
            model.HostState(devices=self.devices),
            policy.DeviceRules(),
            self._all_claims(),
        )

    def start(
        self,
        server: str,
        groups: Iterable[flavors.RequestGroup],
        allocations: Mapping[str, Mapping[str, int]],
    ) -> str:
        """Start a server; return the reason if its claim failed."""
        try:
            claims = claim_plan.plan(
                server,
                groups,
                self._slots(allocations),
                self.root,
                model.HostState(devices=self.devices),
                allocations,
            )
        except errors.ClaimError as error:
            return str(error)
        self.claims[server] = claims
        self.devices = tuple(
            _with_available(device_capacity.reserve_claims(device, claims))
            for device in self.devices
        )
        return ""

    def stop(self, server: str) -> None:
        """Stop a server and remove its partitions."""
        handles = {claim.handle for claim in self.claims.pop(server)}
        self.devices = tuple(
            _with_available(device_capacity.remove_partitions(device, handles))
            for device in self.devices
        )

    def _all_claims(self) -> list[model.Claim]:
        return [*itertools.chain.from_iterable(self.claims.values())]

    def _slots(
        self, allocations: Mapping[str, Mapping[str, int]]
    ) -> list[model.Slot]:
        """Return the slots that Nova's resource tracker claims."""
        claimed = {(c.provider, c.slot) for c in self._all_claims()}
        return [
            model.Slot(
                provider=node.uuid,
                resource_class=resource_class,
                identifier=slot,
            )
            for node in self.tree().nodes
            for resource_class, slots in node.slots.items()
            for slot in sorted(
                s for s in slots if (node.uuid, s) not in claimed
            )[: allocations.get(node.uuid, {}).get(resource_class, 0)]
        ]


def _twin(device: model.Device, address: str) -> model.Device:
    is_whole = device.technology == "passthrough"
    return dataclasses.replace(
        device,
        address=address,
        slots=(
            (address,)
            if is_whole
            else tuple(
                s.replace(device.address, address) for s in device.slots
            )
        ),
    )


def _with_available(device: model.Device) -> model.Device:
    """Return a card that offers all that its geometry allows."""
    return device_capacity.recalculate(
        dataclasses.replace(
            device,
            profiles=tuple(
                dataclasses.replace(
                    p,
                    available=PLENTY
                    if device.geometry.layout is not ANY
                    else p.available,
                )
                for p in device.profiles
            ),
        )
    )
