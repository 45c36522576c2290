# SPDX-License-Identifier: Apache-2.0
"""Cards as Placement tells of them, and servers that ask for some."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from filters import provider_facts, request
from filters.fit import candidate_fit, vgpu_geometry
from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.model import names

KNOWN = loader.load()
CARDS = vgpu_geometry.VgpuGeometry(KNOWN)
ROOT = "root"


def kind(name: str) -> vgpu_types.CatalogVgpuType:
    """Return a vGPU type of the catalogue."""
    found = KNOWN.find(name)
    assert found is not None, name
    return found


def trait(name: str) -> str:
    """Return the trait of a vGPU type."""
    return mdev_names.profile_trait(name, "10de", gpu=True)


def charges(name: str, count: int = 1) -> dict[str, int]:
    """Return what vGPUs of a type take of their card."""
    one = kind(name)
    found = {
        names.GPU_CLASS: count,
        names.GPU_MEMORY_CLASS: one.framebuffer_mb * count,
    }
    gpu = KNOWN.gpu(one.gpu)
    assert gpu is not None
    if one.instance and one.per_instance == 1:
        (slices,) = {k.slices for k in gpu.kinds if k.name == one.instance}
        found[names.MIG_SLICE_CLASS] = slices * count
    return found


def vgpus(*types: str, **extra_specs: str) -> dict[str, str]:
    """Return extra specs that ask for vGPUs, each in a group of its own.

    :param extra_specs: what else the flavor says, less ``accelerator:``.
    """
    found = {f"accelerator:{key}": text for key, text in extra_specs.items()}
    for suffix, name in zip("ABCDEFGH", types, strict=False):
        for resource_class, amount in charges(name).items():
            found[f"resources_{suffix}:{resource_class}"] = str(amount)
        found[f"trait_{suffix}:{trait(name)}"] = "required"
    return found


def asks(*types: str, **extra_specs: str) -> request.AcceleratorRequest:
    """Return a request for vGPUs, each in a group of its own."""
    return request.parse_request(vgpus(*types, **extra_specs))


def capacity(gpu: str, layout: model.Layout) -> dict[str, int]:
    """Return the totals of a card of a model."""
    facts = KNOWN.gpu(gpu)
    assert facts is not None
    found = {names.GPU_CLASS: 32, names.GPU_MEMORY_CLASS: facts.memory_mb}
    if layout is model.Layout.MIG:
        found[names.GPU_CLASS] = facts.mig_slices
        found[names.MIG_SLICE_CLASS] = facts.mig_slices
    return found


def card(
    uuid: str,
    *held: str | Mapping[str, int],
    gpu: str = "L40S",
    layout: model.Layout = model.Layout.MIXED,
    traits: Iterable[str] = (),
    **more: Any,
) -> provider_facts.ProviderFacts:
    """Return what Placement tells of a card.

    :param held: what each consumer has of it: one vGPU of a type, or
        amounts by class.
    """
    usages = tuple(
        charges(one) if isinstance(one, str) else one for one in held
    )
    found = provider_facts.ProviderFacts(
        uuid=uuid,
        name=f"host_accel_{uuid}",
        stock={
            name: provider_facts.ClassCapacity(
                capacity=total,
                used=sum(usage.get(name, 0) for usage in usages),
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
        held=usages,
    )
    return dataclasses.replace(found, **more)


def offers(gpu: str, layout: model.Layout) -> Iterator[str]:
    """Yield the traits of every type that an empty card can make."""
    for one in KNOWN.profiles_of(gpu):
        if bool(one.instance) == (layout is model.Layout.MIG):
            yield trait(one.name)


def facts_of(
    *providers: provider_facts.ProviderFacts,
) -> dict[str, provider_facts.ProviderFacts]:
    return {one.uuid: one for one in providers}


def candidate(
    wanted: request.AcceleratorRequest, *uuids: str
) -> provider_facts.Candidate:
    """Return the candidate that takes each group from a provider."""
    allocations: dict[str, Any] = {
        ROOT: {"resources": {"VCPU": 1, "MEMORY_MB": 64}}
    }
    for group, uuid in zip(wanted.groups, uuids, strict=True):
        taken = allocations.setdefault(uuid, {"resources": {}})["resources"]
        for name, amount in group.resources.items():
            taken[name] = taken.get(name, 0) + amount
    mappings = {
        group.suffix: [uuid]
        for group, uuid in zip(wanted.groups, uuids, strict=True)
    }
    return {
        "allocations": allocations,
        "mappings": {"": [ROOT], **mappings},
    }


def candidates(
    wanted: request.AcceleratorRequest, uuids: Iterable[str]
) -> list[provider_facts.Candidate]:
    """Return every candidate that some providers make."""
    return [
        candidate(wanted, *chosen)
        for chosen in itertools.product(uuids, repeat=len(wanted.groups))
    ]


def taken_by(one: provider_facts.Candidate) -> tuple[str, ...]:
    """Return the provider of each group of a candidate."""
    return tuple(
        provider
        for suffix, (provider,) in sorted(one["mappings"].items())
        if suffix
    )


def why_not(
    wanted: request.AcceleratorRequest,
    one: provider_facts.Candidate,
    view: candidate_fit.HostFacts,
) -> str:
    """Return why a candidate is refused, nothing if it is not."""
    fits, lacks = candidate_fit.fitting(wanted, [one], view)
    assert bool(fits) != bool(lacks)
    return "; ".join(lacks.values())
