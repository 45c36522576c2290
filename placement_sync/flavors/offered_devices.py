# SPDX-License-Identifier: Apache-2.0
"""Devices of a cloud, and the profiles of each."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.model import names, providers

# NVIDIA's, the only vendor whose types anybody lists.
_NVIDIA = "10de"
NVIDIA_PREFIX = "CUSTOM_VGPU_NVIDIA_"
# "_3584M" behind the trait of a function with a quota of memory.
_QUOTA = re.compile(r"_(\d+)M$")
# NVIDIA's series, as the trait of a type ends: A40_8Q, A100_1_5CME.
_LETTERS = "QCAB"
_SERIES = re.compile(rf"_\d+([{_LETTERS}])\d*(?:ME|GFX)?$")
_PROFILE_CLASSES = (names.GPU_CLASS, names.WHOLE_GPU_CLASS, names.MDEV_CLASS)
OUT = frozenset(
    {
        names.DRAINED_TRAIT,
        names.FAULTED_TRAIT,
        names.MISSING_TRAIT,
        names.UNKNOWN_TRAIT,
    }
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedCapacity(providers.ClassCapacity):
    """The same, with all that there is, allocatable or not.

    ``total`` is that, as far as it was read.
    """

    total: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device as Placement has it.

    ``host`` is the name of its compute node and ``root`` the uuid;
    ``card`` is the uuid of the whole that it is a part of, its own else,
    and ``model`` the trait of that one's model, empty where it has none.
    """

    uuid: str
    name: str
    host: str
    root: str
    card: str
    model: str = ""
    traits: frozenset[str] = frozenset()
    stock: Mapping[str, ListedCapacity] = dataclasses.field(
        default_factory=dict
    )

    @property
    def is_out(self) -> bool:
        """Return whether it is drained, at fault or missing."""
        return bool(self.traits & OUT)

    @property
    def is_mig(self) -> bool:
        """Return whether it is a GPU in MIG mode."""
        return names.MIG_SLICE_CLASS in self.stock

    @property
    def address(self) -> str:
        """Return its address as provider_name spells it."""
        return self.name.removeprefix(names.provider_name(self.host, ""))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """All devices of ours, and what each host has beside them, by uuid."""

    devices: tuple[OfferedDevice, ...] = ()
    hosts: Mapping[str, Mapping[str, ListedCapacity]] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTerms:
    """What a device can be asked for, and what that charges.

    ``name`` is for people, and good for ``--profile``; ``required`` are
    the traits that the device must have. Of a vGPU ``charges`` lacks what
    nobody knows: ``unknown`` are the classes then.
    """

    name: str
    kind: str
    charges: Mapping[str, int]
    required: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    facts: vgpu_types.CatalogVgpuType | None = None


class VgpuTypes:
    """NVIDIA's types of vGPUs, found by the traits that name them."""

    def __init__(self, known: vgpu_types.Catalog) -> None:
        """Take them from a catalogue."""
        self._known = known
        self._models = {
            trait: gpu for gpu in known.gpus() for trait in _models(known, gpu)
        }
        self.by_trait = known.by_trait()

    def find(self, trait: str) -> vgpu_types.CatalogVgpuType | None:
        """Return the type that a trait names, None if it is not known.

        One that is not listed is as one of its size in another series.
        """
        listed = self.by_trait.get(trait)
        found = _SERIES.search(trait)
        if listed is not None or found is None:
            return listed
        head, tail = trait[: found.start(1)], trait[found.end(1) :]
        for letter in _LETTERS:
            alike = self.by_trait.get(f"{head}{letter}{tail}")
            if alike is not None:
                return dataclasses.replace(
                    alike, name=_renamed(alike.name, found[1])
                )
        return None

    def makes(
        self, provider: OfferedDevice, facts: vgpu_types.CatalogVgpuType
    ) -> bool:
        """Return whether a device, empty, makes a type in its mode."""
        return (
            provider.model in self.models_of(facts)
            and names.GPU_CLASS in provider.stock
            and bool(facts.instance) == provider.is_mig
        )

    def models_of(self, facts: vgpu_types.CatalogVgpuType) -> frozenset[str]:
        """Return the traits by which cards that have a type are known."""
        gpu = self._known.gpu(facts.gpu)
        return frozenset(_models(self._known, gpu) if gpu else ())

    def knows(self, provider: OfferedDevice) -> bool:
        """Return whether all types of a device are known."""
        return bool(self.of_device(provider))

    def of_device(
        self, provider: OfferedDevice
    ) -> tuple[vgpu_types.CatalogVgpuType, ...]:
        """Return the types that a device can make in its present mode."""
        gpu = self._models.get(provider.model)
        if gpu is None or names.GPU_CLASS not in provider.stock:
            return ()
        return tuple(
            one
            for one in self._known.profiles_of(gpu.key)
            if bool(one.instance) == provider.is_mig
        )

    def terms(self, facts: vgpu_types.CatalogVgpuType) -> ProfileTerms:
        """Return the terms of a type that the catalogue knows."""
        return ProfileTerms(
            name=facts.name,
            kind="MIG vGPU" if facts.instance else "vGPU",
            charges=self._known.charges(facts),
            required=frozenset({facts.trait}),
            facts=facts,
        )


def _renamed(name: str, letter: str) -> str:
    """Return the name of a type in another series."""
    return next(n for n in mdev_names.same_size(name) if _is_of(n, letter))


def _is_of(name: str, letter: str) -> bool:
    return series(name) == letter


def series(name: str) -> str:
    """Return the letter of a type's series: ``Q`` of ``A40-8Q``."""
    return name.rpartition("-")[2].lstrip("0123456789")[:1]


def _models(
    known: vgpu_types.Catalog, gpu: vgpu_types.CatalogGpu
) -> frozenset[str]:
    """Return a model's traits: by its key, and by the stem of its types."""
    types = [one.name for one in known.profiles_of(gpu.key)]
    words = {gpu.key, mdev_names.model_name(types, gpu.key)}
    return frozenset(names.model_trait(_NVIDIA, word) for word in words)


def limit(
    provider: OfferedDevice, facts: vgpu_types.CatalogVgpuType | None
) -> int | None:
    """Return how many of a type a card holds at most, None if unknown."""
    if facts is None:
        return None
    mixed = names.layout_trait("mixed") in provider.traits
    if mixed and facts.limit_mixed is not None:
        return min(facts.limit, facts.limit_mixed)
    return facts.limit


def spoken_model(trait: str) -> str:
    """Return a model's trait in words: ``NVIDIA A40``; ``-`` for none."""
    return trait.removeprefix(names.MODEL_PREFIX).replace("_", " ") or "-"


# -- what each device can be asked for --------------------------------------


def terms_of(
    provider: OfferedDevice, types: VgpuTypes
) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield what a device can be asked for, and whether it can give it now.

    Of a device whose model the catalogue knows, what it could make if it
    were empty is there too. Counters say how many, not this.
    """
    stock = provider.stock
    seen = set()
    if any(one in stock for one in _PROFILE_CLASSES):
        for trait in sorted(provider.traits):
            if trait.startswith(names.PROFILE_PREFIXES):
                seen.add(trait)
                yield _profile(trait, provider, types), not provider.is_out
        for facts in types.of_device(provider):
            if facts.trait not in seen:
                yield types.terms(facts), False
    if names.FPGA_CLASS in stock:
        yield from _regions(provider)
    for name in sorted(stock):
        if name not in {*_PROFILE_CLASSES, names.FPGA_CLASS, *names.MEASURES}:
            yield _whole(name, provider), not provider.is_out


def _profile(
    trait: str, provider: OfferedDevice, types: VgpuTypes
) -> ProfileTerms:
    facts = types.find(trait)
    if facts is not None:
        return types.terms(facts)
    own = next(n for n in _PROFILE_CLASSES if n in provider.stock)
    charges, unknown = {own: 1}, set()
    if own == names.GPU_CLASS:
        guessed = guess(trait)
        for counter in sorted(names.MEASURES & provider.stock.keys()):
            if counter in guessed:
                charges[counter] = guessed[counter]
            else:
                unknown.add(counter)
    return ProfileTerms(
        name=mdev_names.name_of(trait),
        kind=_kind(trait, own),
        charges=charges,
        required=frozenset({trait}),
        unknown=frozenset(unknown),
    )


def _kind(trait: str, resource_class: str) -> str:
    if resource_class == names.WHOLE_GPU_CLASS:
        return "GPU"
    if resource_class == names.MDEV_CLASS:
        return "mdev"
    return "GPU VF" if trait.startswith("CUSTOM_GPU_VF_") else "vGPU"


def guess(trait: str) -> dict[str, int]:
    """Return the charges that the name in a vGPU's trait tells."""
    quota = _QUOTA.search(trait)
    if quota:
        return {names.GPU_MEMORY_CLASS: int(quota[1])}
    name = mdev_names.strip_head(trait).replace("_", "-")
    size, instance = (
        mdev_names.named_size(name),
        mdev_names.named_instance(name),
    )
    if not size or not trait.startswith(NVIDIA_PREFIX):
        return {}
    found = {names.GPU_MEMORY_CLASS: size}
    if instance:
        found[names.MIG_SLICE_CLASS] = int(instance.partition("g.")[0])
    return found


def _regions(provider: OfferedDevice) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield an FPGA region, its functions, and what can be loaded there."""
    is_free = names.REGION_TRAIT in provider.traits and not provider.is_out
    yield _region("FPGA region", names.REGION_TRAIT), is_free
    for trait in sorted(provider.traits):
        if trait.startswith(names.FUNCTION_PREFIX):
            yield _region("FPGA function", trait), is_free
        elif (
            trait.startswith(names.INTERFACE_PREFIX)
            and names.PROGRAMMABLE_TRAIT in provider.traits
        ):
            found = _region("FPGA interface", trait, names.PROGRAMMABLE_TRAIT)
            yield found, is_free


def _region(kind: str, *required: str) -> ProfileTerms:
    return ProfileTerms(
        name=mdev_names.name_of(required[0]).lower(),
        kind=kind,
        charges={names.FPGA_CLASS: 1},
        required=frozenset(required),
    )


def _whole(resource_class: str, provider: OfferedDevice) -> ProfileTerms:
    is_vf = resource_class.endswith("_VF")
    own = sorted(
        t for t in provider.traits if t.startswith(names.DEVICE_PREFIX)
    )
    name = mdev_names.whole_name(own[0], is_vf) if own else resource_class
    if not own and provider.model in provider.traits:
        own = [provider.model]
    return ProfileTerms(
        name=name,
        kind="VF" if is_vf else "device",
        charges={resource_class: 1},
        required=frozenset(own[:1]),
    )
