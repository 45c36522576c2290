# SPDX-License-Identifier: Apache-2.0
"""Cards as stored in Placement, and requests of servers for vGPUs."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from filters import request
from filters.fit import candidate_fit, provider_facts
from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.geometry.scheduling import vgpu_geometry
from nova_accel.model import names, providers

CATALOG = loader.load()
GEOMETRY = vgpu_geometry.VgpuGeometry(CATALOG)
ROOT = "root"


def kind(name: str) -> vgpu_types.CatalogVgpuType:
    """Return a vGPU type of the catalog."""
    vgpu_type = CATALOG.find(name)
    assert vgpu_type is not None, name
    return vgpu_type


def trait(name: str) -> str:
    """Return the trait of a vGPU type."""
    return mdev_names.profile_trait(name, "10de", gpu=True)


def charges(name: str, count: int = 1) -> dict[str, int]:
    """Return the units by class that vGPUs of a type need."""
    vgpu_type = kind(name)
    units = {
        names.GPU_CLASS: count,
        names.GPU_MEMORY_CLASS: vgpu_type.framebuffer_mb * count,
    }
    gpu = CATALOG.gpu(vgpu_type.gpu)
    assert gpu is not None
    if vgpu_type.instance and vgpu_type.per_instance == 1:
        (slices,) = {
            k.slices for k in gpu.kinds if k.name == vgpu_type.instance
        }
        units[names.MIG_SLICE_CLASS] = slices * count
    return units


def vgpus(*types: str, **extra_specs: str) -> dict[str, str]:
    """Return extra specs of vGPUs, each in its own group.

    :param extra_specs: other keys of the flavor, without ``accelerator:``.
    """
    specs = {f"accelerator:{key}": text for key, text in extra_specs.items()}
    for suffix, name in zip("ABCDEFGH", types, strict=False):
        for resource_class, amount in charges(name).items():
            specs[f"resources_{suffix}:{resource_class}"] = str(amount)
        specs[f"trait_{suffix}:{trait(name)}"] = "required"
    return specs


def asks(*types: str, **extra_specs: str) -> request.AcceleratorRequest:
    """Return a request for vGPUs, each in its own group."""
    return request.parse_request(vgpus(*types, **extra_specs))


def capacity(gpu: str, layout: model.Layout) -> dict[str, int]:
    """Return the totals of a card of a model."""
    facts = CATALOG.gpu(gpu)
    assert facts is not None
    units = {names.GPU_CLASS: 32, names.GPU_MEMORY_CLASS: facts.memory_mb}
    if layout is model.Layout.MIG:
        units[names.GPU_CLASS] = facts.mig_slices
        units[names.MIG_SLICE_CLASS] = facts.mig_slices
    return units


def card(
    uuid: str,
    *consumers: str | Mapping[str, int],
    gpu: str = "L40S",
    layout: model.Layout = model.Layout.MIXED,
    traits: Iterable[str] = (),
    **fields: Any,
) -> providers.Provider:
    """Return a card's provider.

    :param consumers: the allocation of each consumer: one vGPU of a type,
        or units by class.
    """
    allocations = tuple(
        charges(consumer) if isinstance(consumer, str) else consumer
        for consumer in consumers
    )
    facts = providers.Provider(
        uuid=uuid,
        name=f"host_accel_{uuid}",
        capacities={
            name: providers.ClassCapacity(
                capacity=total,
                used=sum(units.get(name, 0) for units in allocations),
            )
            for name, total in capacity(gpu, layout).items()
        },
        traits=frozenset(
            {
                names.OWNER_TRAIT,
                names.layout_trait(layout.value),
                *offers(gpu, layout),
                *traits,
            }
        ),
        root=ROOT,
        parent=ROOT,
        allocations=allocations,
    )
    return dataclasses.replace(facts, **fields)


def offers(gpu: str, layout: model.Layout) -> Iterator[str]:
    """Yield the traits of every type that an empty card can make."""
    for vgpu_type in CATALOG.profiles_of(gpu):
        if bool(vgpu_type.instance) == (layout is model.Layout.MIG):
            yield trait(vgpu_type.name)


def facts_of(
    *providers: providers.Provider,
) -> dict[str, providers.Provider]:
    return {facts.uuid: facts for facts in providers}


def candidate(
    accelerators: request.AcceleratorRequest, *uuids: str
) -> provider_facts.Candidate:
    """Return the candidate that takes each group from a provider."""
    allocations: dict[str, Any] = {
        ROOT: {"resources": {"VCPU": 1, "MEMORY_MB": 64}}
    }
    for group, uuid in zip(accelerators.groups, uuids, strict=True):
        units = allocations.setdefault(uuid, {"resources": {}})["resources"]
        for name, amount in group.resources.items():
            units[name] = units.get(name, 0) + amount
    mappings = {
        group.suffix: [uuid]
        for group, uuid in zip(accelerators.groups, uuids, strict=True)
    }
    return {
        "allocations": allocations,
        "mappings": {"": [ROOT], **mappings},
    }


def candidates(
    accelerators: request.AcceleratorRequest, uuids: Iterable[str]
) -> list[provider_facts.Candidate]:
    """Return every candidate of some providers."""
    return [
        candidate(accelerators, *chosen)
        for chosen in itertools.product(uuids, repeat=len(accelerators.groups))
    ]


def list_mapped(candidate: provider_facts.Candidate) -> tuple[str, ...]:
    """Return the provider of each group of a candidate."""
    return tuple(
        provider
        for suffix, (provider,) in sorted(candidate["mappings"].items())
        if suffix
    )


def why_not(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> str:
    """Return the reason of a refused candidate, or nothing."""
    fitting, rejections = candidate_fit.select(
        accelerators, [candidate], host_facts
    )
    assert bool(fitting) != bool(rejections)
    return "; ".join(map(str, rejections.values()))
