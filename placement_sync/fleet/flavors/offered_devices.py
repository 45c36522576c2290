# SPDX-License-Identifier: Apache-2.0
"""Devices of a cloud, and the profiles of each."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.geometry.scheduling import vgpu_geometry
from nova_accel.inventory import node_counts
from nova_accel.model import names, providers
from placement_sync.client import nova_api

# PCI vendor id of NVIDIA, the only vendor in the catalog of vGPU types.
_NVIDIA = "10de"
# "_3584M" at the end of the trait of a VF with a quota of memory.
_QUOTA = re.compile(r"_(\d+)M$")
# NVIDIA's series at the end of a type's trait: A40_8Q, A100_1_5CME.
_SERIES_LETTERS = "QCAB"
_SERIES = re.compile(rf"_\d+([{_SERIES_LETTERS}])\d*(?:ME|GFX)?$")
# Kind of profiles of whole nodes, and the address of a node.
BARE_METAL = "bare metal"
_PROFILE_CLASSES = (names.GPU_CLASS, names.WHOLE_GPU_CLASS, names.MDEV_CLASS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice(providers.Provider):
    """Provider of a device, with its place in the cloud.

    ``host`` is the name of its compute node. ``card`` is the uuid of the
    card's provider, of its own for a card.
    ``model`` is the trait of the card's model, else that of its name in
    pci.ids, empty if it has none. Flavors require no name.

    A bare-metal node of Ironic is one device: a server takes it whole.
    ``counts`` are its accelerators, empty for a device of a compute node.
    ``service`` is that of its host; None if Nova was not asked, or shows
    none.
    """

    host: str
    card: str
    model: str = ""
    counts: tuple[node_counts.NodeCount, ...] = ()
    service: nova_api.ComputeService | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether its host is down: it takes no server."""
        return self.service is not None and not self.service.is_up

    @property
    def is_unavailable(self) -> bool:
        """Return whether it is drained, faulted, missing or stale."""
        return self.is_stale or bool(self.traits & names.UNAVAILABLE_TRAITS)

    @property
    def is_mig(self) -> bool:
        return names.MIG_SLICE_CLASS in self.capacities

    @property
    def address(self) -> str:
        """Return its address, of a bare-metal node ``bare metal``."""
        if self.counts:
            return BARE_METAL
        return names.provider_address(self.host, self.name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """All devices, and capacities of compute nodes by their uuid.

    ``disabled`` are the uuids of those compute nodes that get no server,
    because their service is disabled.
    """

    devices: tuple[OfferedDevice, ...] = ()
    hosts: Mapping[str, Mapping[str, providers.ClassCapacity]] = (
        dataclasses.field(default_factory=dict)
    )
    disabled: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTerms:
    """Terms on which a profile can be requested.

    ``name`` is for people and ``--profile``; ``required`` are the traits
    that the device must have. ``unknown`` are the classes of a vGPU whose
    charges are not known; ``charges`` lacks them.
    """

    name: str
    kind: str
    charges: Mapping[str, int]
    required: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    vgpu_type: vgpu_types.CatalogVgpuType | None = None


class VgpuTypes:
    """NVIDIA's vGPU types of a catalog, by trait and by device."""

    def __init__(self, catalog: vgpu_types.Catalog) -> None:
        self.catalog = catalog
        self.geometry = vgpu_geometry.VgpuGeometry(catalog)
        self._gpu_by_trait = {
            trait: gpu
            for gpu in catalog.gpus()
            for trait in _list_model_traits(catalog, gpu)
        }
        self.by_trait = catalog.by_trait()
        #: GPUs by vendor and product: ``10de:2330``.
        self.gpu_by_ids = {i: g for g in catalog.gpus() for i in g.pci_ids}
        # A cloud has thousands of cards, of few models.
        self.terms = functools.cache(self._build_terms)

    def find(self, trait: str) -> vgpu_types.CatalogVgpuType | None:
        """Return the type of a trait, or None.

        A type that is not in the catalog is derived from a type of the same
        size in another series.
        """
        listed = self.by_trait.get(trait)
        match = _SERIES.search(trait)
        if listed is not None or match is None:
            return listed
        head, tail = trait[: match.start(1)], trait[match.end(1) :]
        for letter in _SERIES_LETTERS:
            alike = self.by_trait.get(f"{head}{letter}{tail}")
            if alike is not None:
                return dataclasses.replace(
                    alike, name=_rename(alike.name, match[1])
                )
        return None

    def gpu_of(self, provider: OfferedDevice) -> vgpu_types.CatalogGpu | None:
        """Return the model of a device in the catalog, or None."""
        return self._gpu_by_trait.get(provider.model)

    def of_device(
        self, provider: OfferedDevice
    ) -> tuple[vgpu_types.CatalogVgpuType, ...]:
        """Return the types that a device supports in its present mode."""
        gpu = self.gpu_of(provider)
        if gpu is None or names.GPU_CLASS not in provider.capacities:
            return ()
        return tuple(
            vgpu_type
            for vgpu_type in self.catalog.profiles_of(gpu.key)
            if bool(vgpu_type.instance) == provider.is_mig
        )

    def _build_terms(
        self, vgpu_type: vgpu_types.CatalogVgpuType
    ) -> ProfileTerms:
        return ProfileTerms(
            name=vgpu_type.name,
            kind="MIG vGPU" if vgpu_type.instance else "vGPU",
            charges=self.catalog.charges(vgpu_type),
            required=frozenset({vgpu_type.trait}),
            vgpu_type=vgpu_type,
        )


def _rename(name: str, letter: str) -> str:
    """Return the name of a type in another series of the same size."""
    return next(
        n
        for n in mdev_names.list_series_names(name)
        if _is_of_series(n, letter)
    )


def _is_of_series(name: str, letter: str) -> bool:
    return mdev_names.parse_series(name) == letter


def _list_model_traits(
    catalog: vgpu_types.Catalog, gpu: vgpu_types.CatalogGpu
) -> frozenset[str]:
    """Return a model's traits: by its key, and by the stem of its types."""
    types = [t.name for t in catalog.profiles_of(gpu.key)]
    models = {gpu.key, mdev_names.model_name(types, gpu.key)}
    return frozenset(names.model_trait(_NVIDIA, model) for model in models)


def model_name(trait: str) -> str:
    """Return the model of a trait, such as ``NVIDIA A40``; ``-`` for none."""
    return strip_model_prefix(trait).replace("_", " ") or "-"


def find_ids(device: OfferedDevice) -> str:
    """Return vendor and product of a card, ``8086:56c0``, empty if unknown."""
    for trait in sorted(device.traits):
        if trait.startswith(names.DEVICE_PREFIX):
            ids = trait.removeprefix(names.DEVICE_PREFIX).lower()
            return ids.replace("_", ":", 1)
    return ""


def strip_model_prefix(trait: str) -> str:
    """Return a trait without the prefix of models, or of names."""
    model = trait.removeprefix(names.MODEL_PREFIX)
    return model.removeprefix(names.NAME_PREFIX)


# -- terms of each device ---------------------------------------------------


def list_terms(
    provider: OfferedDevice, types: VgpuTypes
) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield the profiles of a device, and whether each is available now.

    For a model in the catalog, profiles that need an empty device are
    included. Inventories, which are not considered here, limit the number.
    """
    capacities = provider.capacities
    if provider.counts:
        yield from _list_node_terms(provider)
        return
    if any(name in capacities for name in _PROFILE_CLASSES):
        yield from _list_profile_terms(provider, types)
    if names.FPGA_CLASS in capacities:
        yield from _list_region_terms(provider)
    for name in sorted(capacities):
        if name not in {*_PROFILE_CLASSES, names.FPGA_CLASS, *names.MEASURES}:
            yield (
                _build_whole_terms(name, provider),
                not provider.is_unavailable,
            )


def _list_profile_terms(
    provider: OfferedDevice, types: VgpuTypes
) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield the terms of profiles: available, supported, in the catalog."""
    seen = set()
    for trait in sorted(provider.traits):
        if trait.startswith(names.PROFILE_PREFIXES):
            seen.add(trait)
            yield (
                _build_profile_terms(trait, provider, types),
                not provider.is_unavailable,
            )
    supported = {
        names.CUSTOM + trait.removeprefix(names.SUPPORTED_PREFIX)
        for trait in provider.traits
        if trait.startswith(names.SUPPORTED_PREFIX)
    }
    for trait in sorted(supported - seen):
        seen.add(trait)
        yield _build_profile_terms(trait, provider, types), False
    for vgpu_type in types.of_device(provider):
        terms = types.terms(vgpu_type)
        if terms.required.isdisjoint(seen):
            yield terms, False


def _list_node_terms(
    provider: OfferedDevice,
) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield the terms of a bare-metal node, one for each model in it."""
    for resource_class in sorted(provider.capacities):
        for count in provider.counts:
            terms = ProfileTerms(
                name=count.trait.removeprefix(names.CUSTOM).lower(),
                kind=BARE_METAL,
                charges={resource_class: 1},
                required=frozenset({count.trait}),
            )
            yield terms, not provider.is_unavailable


def _build_profile_terms(
    trait: str, provider: OfferedDevice, types: VgpuTypes
) -> ProfileTerms:
    vgpu_type = types.find(trait)
    if vgpu_type is not None:
        return types.terms(vgpu_type)
    own = next(n for n in _PROFILE_CLASSES if n in provider.capacities)
    charges, unknown = {own: 1}, set()
    if own == names.GPU_CLASS:
        guessed = guess_charges(trait)
        for counter in sorted(names.MEASURES & provider.capacities.keys()):
            if counter in guessed:
                charges[counter] = guessed[counter]
            else:
                unknown.add(counter)
    return ProfileTerms(
        name=mdev_names.name_from_trait(trait),
        kind=_get_kind(trait, own),
        charges=charges,
        required=frozenset({trait}),
        unknown=frozenset(unknown),
    )


def _get_kind(trait: str, resource_class: str) -> str:
    if resource_class == names.WHOLE_GPU_CLASS:
        return "GPU"
    if resource_class == names.MDEV_CLASS:
        return "mdev"
    return "GPU VF" if trait.startswith("CUSTOM_GPU_VF_") else "vGPU"


def guess_charges(trait: str) -> dict[str, int]:
    """Return the charges that the name in a vGPU's trait contains."""
    quota = _QUOTA.search(trait)
    if quota:
        return {names.GPU_MEMORY_CLASS: int(quota[1])}
    name = mdev_names.strip_trait_prefix(trait).replace("_", "-")
    size, instance = (
        mdev_names.parse_size(name),
        mdev_names.parse_instance_kind(name),
    )
    if not size or not trait.startswith(names.NVIDIA_VGPU_PREFIX):
        return {}
    charges = {names.GPU_MEMORY_CLASS: size}
    if instance:
        charges[names.MIG_SLICE_CLASS] = int(instance.partition("g.")[0])
    return charges


def _list_region_terms(
    provider: OfferedDevice,
) -> Iterator[tuple[ProfileTerms, bool]]:
    """Yield the terms of an FPGA region, its functions and interfaces."""
    is_free = (
        names.REGION_TRAIT in provider.traits and not provider.is_unavailable
    )
    yield _build_region_terms("FPGA region", names.REGION_TRAIT), is_free
    for trait in sorted(provider.traits):
        if trait.startswith(names.FUNCTION_PREFIX):
            yield _build_region_terms("FPGA function", trait), is_free
        elif (
            trait.startswith(names.INTERFACE_PREFIX)
            and names.PROGRAMMABLE_TRAIT in provider.traits
        ):
            terms = _build_region_terms(
                "FPGA interface", trait, names.PROGRAMMABLE_TRAIT
            )
            yield terms, is_free


def _build_region_terms(kind: str, *required: str) -> ProfileTerms:
    return ProfileTerms(
        name=mdev_names.name_from_trait(required[0]).lower(),
        kind=kind,
        charges={names.FPGA_CLASS: 1},
        required=frozenset(required),
    )


def _build_whole_terms(
    resource_class: str, provider: OfferedDevice
) -> ProfileTerms:
    is_vf = resource_class.endswith("_VF")
    own = sorted(
        t for t in provider.traits if t.startswith(names.DEVICE_PREFIX)
    )
    name = (
        mdev_names.device_name_from_trait(own[0], is_vf)
        if own
        else resource_class
    )
    is_model = provider.model.startswith(names.MODEL_PREFIX)
    if not own and is_model and provider.model in provider.traits:
        own = [provider.model]
    return ProfileTerms(
        name=name,
        kind="VF" if is_vf else "device",
        charges={resource_class: 1},
        required=frozenset(own[:1]),
    )
