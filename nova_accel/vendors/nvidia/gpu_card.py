# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA card: its mode, counters and profiles.

The two drivers fill an NvidiaCard from their kernel interface. This module
derives the rest for both: the mode of the card, the charges of a vGPU, the
profiles that policy allows, and the device.

Without NVML the host shows no GPU instances. But each MIG vGPU is in one,
and a type is creatable only if an instance of its kind has room for it. The
inferred instances are therefore the minimum.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.nvidia import type_sources

VENDOR_ID = "10de"
# Limit of time-sliced vGPUs on a card, whatever its number of VFs.
MAX_TIME_SLICED = vgpu_types.MAX_TIME_SLICED
# The host driver's kernel module.
MODULE = "nvidia"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvidiaCard:
    """A card as the host shows it.

    ``nvml`` is the state that NVML reports, empty without NVML. ``offers``
    are the card's vGPU types. ``slots`` are its VFs if ``on_vfs``, else
    slot names. ``is_managed`` is False if assigned VFs stay bound to
    NVIDIA's driver. ``is_blocked`` is True if the card can't create vGPUs
    for a reason that is reported elsewhere.
    """

    function: pci.PciFunction
    plugin: str
    technology: str
    rule: policy.Rule
    nvml: nvml_gpus.NvmlGpu
    driver_version: str
    offers: tuple[type_sources.OfferedType, ...]
    partitions: tuple[model.Partition, ...]
    slots: tuple[str, ...]
    on_vfs: bool
    is_managed: bool = True
    is_blocked: bool = False

    @property
    def address(self) -> str:
        return str(self.function.address)

    @functools.cached_property
    def types(self) -> type_sources.Types:
        """Return the types and their properties by name, sorted."""
        nvml_types = map_nvml_types(self.nvml)
        return {
            offer.name: (
                offer,
                type_sources.merge(
                    offer,
                    nvml_types.get(offer.name),
                    has_placements=self.has_placements,
                ),
            )
            for offer in sorted(self.offers, key=lambda o: o.name)
        }

    @property
    def has_placements(self) -> bool:
        """Return whether NVML reports placements of mixed-size mode.

        Placements of the catalog are then not used for any type.
        """
        return any(nvml_type.starts for nvml_type in self.nvml.types)

    @functools.cached_property
    def catalog_gpu(self) -> vgpu_types.CatalogGpu | None:
        return find_catalog_gpu(self.function, tuple(self.types))

    @property
    def model_name(self) -> str:
        """Return the model's name from its types, or the catalog."""
        sized = [
            n for n, (_, properties) in self.types.items() if properties.size
        ]
        if not sized and self.catalog_gpu is not None:
            return self.catalog_gpu.key
        ids = f"{self.function.vendor}:{self.function.product}"
        return mdev_names.model_name(sized, ids)

    @functools.cached_property
    def is_mig(self) -> bool:
        """Return whether the card is in MIG mode.

        Without NVML its types decide: in MIG mode only MIG types exist or
        can be created, in the other mode none. If there are none, policy
        decides.
        """
        if self.nvml.is_mig is not None:
            return self.nvml.is_mig
        existing = {p.profile for p in self.partitions}
        alive = [
            bool(properties.instance)
            for name, (offer, properties) in self.types.items()
            if properties.size and (offer.ready or name in existing)
        ]
        if not alive:
            return self.rule.use is policy.DeviceUse.MIG and self.can_mig
        return all(alive)

    @property
    def can_mig(self) -> bool:
        """Return whether the card has a MIG mode; True if unknown."""
        gpu = self.catalog_gpu
        return gpu is None or gpu.can_mig

    @functools.cached_property
    def is_mixed(self) -> bool:
        """Return whether vGPUs of several sizes may share the card.

        Without NVML, existing vGPUs of several sizes prove it. Creatable
        types do not: an empty card lists all sizes in either mode. Else
        policy decides.
        """
        if self.is_mig or not self.can_mix:
            return False
        if self.nvml.is_mixed is not None:
            return self.nvml.is_mixed
        sizes = {
            self.types[partition.profile][1].size
            for partition in self.partitions
            if partition.profile in self.types
        }
        return len(sizes - {0}) > 1 or bool(self.rule.is_mixed)

    @property
    def can_mix(self) -> bool:
        """Return whether the card has a mixed-size mode; True if unknown."""
        gpu = self.catalog_gpu
        return self.on_vfs and (gpu is None or gpu.can_mix)

    @property
    def is_dynamic(self) -> bool:
        """Return whether claims create and destroy GPU instances."""
        return self.is_mig and self.rule.is_dynamic and bool(self.nvml.kinds)

    @property
    def has_requested_mode(self) -> bool:
        """Return whether the card is in the mode that policy's use names."""
        return not (
            (self.rule.use is policy.DeviceUse.VGPU and self.is_mig)
            or (self.rule.use is policy.DeviceUse.MIG and not self.is_mig)
        )

    @functools.cached_property
    def kinds(self) -> tuple[model.InstanceKind, ...]:
        """Return the kinds of GPU instances the card can have."""
        gpu = self.catalog_gpu
        return self.nvml.kinds or (gpu.kinds if gpu else ())


def map_nvml_types(
    gpu: nvml_gpus.NvmlGpu,
) -> Mapping[str, nvml_gpus.NvmlVgpuType]:
    """Return the types that NVML reports, by name without brand."""
    return {
        mdev_names.strip_brand(nvml_type.name): nvml_type
        for nvml_type in gpu.types
    }


def read_nvml_names(host: host_reader.HostReader) -> dict[str, str]:
    """Return the type names without brand of all GPUs, by type number."""
    return {
        nvml_type.type_id: mdev_names.strip_brand(nvml_type.name)
        for gpu in host.gpus.values()
        for nvml_type in gpu.types
    }


def find_catalog_gpu(
    function: pci.PciFunction, type_names: tuple[str, ...]
) -> vgpu_types.CatalogGpu | None:
    """Return the catalog's entry of a card's model, or None."""
    return loader.load().of_card(
        type_names,
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )


def get_nvml_gpu(
    host: host_reader.HostReader, address: str
) -> nvml_gpus.NvmlGpu:
    """Return the state that NVML reports of a card, empty if none."""
    return host.gpus.get(address) or nvml_gpus.NvmlGpu(address=address)


def build_device(card: NvidiaCard) -> model.Device:
    """Return the card as a device, with consistent available numbers."""
    return device_capacity.recalculate(_build_device(card))


def _build_device(card: NvidiaCard) -> model.Device:
    counters = _compute_counters(card)
    function = card.function
    instances, partitions = card.nvml.instances, card.partitions
    if card.is_mig and (
        card.nvml.is_mig is None or "instances" in card.nvml.unread
    ):
        instances, partitions = _infer_instances(card.types, partitions)
    return model.Device(
        address=card.address,
        plugin=card.plugin,
        technology=card.technology,
        vendor=names.vendor_name(VENDOR_ID),
        model=card.model_name,
        resource_class=names.GPU_CLASS,
        counters=counters,
        slots=card.slots,
        vendor_id=function.vendor,
        product_id=function.product,
        driver=function.driver,
        numa_node=function.numa_node,
        profiles=tuple(_build_profiles(card, counters)),
        partitions=tuple(_fit_partition(card, p) for p in partitions),
        traits=_list_traits(card),
        geometry=_build_geometry(card, instances),
        is_managed=card.is_managed,
        vgpu_params=card.rule.vgpu_params,
    )


def _compute_counters(card: NvidiaCard) -> dict[str, int]:
    counters = {names.GPU_CLASS: len(card.slots)}
    catalog_gpu = card.catalog_gpu
    memory = type_sources.compute_memory_total(
        card.types,
        (p.profile for p in card.partitions),
        (catalog_gpu.memory_mb if catalog_gpu else 0)
        or card.nvml.memory_mb
        or 0,
    )
    if memory:
        counters[names.GPU_MEMORY_CLASS] = memory
    if card.is_mig:
        # The largest kind takes all slices: 7g on most cards, 4g on some.
        # NVML may list only smaller kinds, so the catalog counts too.
        listed = (
            [catalog_gpu.mig_slices]
            if catalog_gpu and catalog_gpu.mig_slices
            else []
        )
        listed += [kind.slices for kind in card.kinds]
        counters[names.MIG_SLICE_CLASS] = max(listed, default=7)
    return counters


def _list_traits(card: NvidiaCard) -> frozenset[str]:
    function = card.function
    traits = set(
        names.identity_traits(
            function.vendor, function.product, function.numa_node
        )
    )
    if ":" not in card.model_name:
        traits.add(names.model_trait(VENDOR_ID, card.model_name))
    version = card.nvml.driver_version or card.driver_version
    if version:
        traits.add(names.driver_trait(VENDOR_ID, version))
    if card.catalog_gpu is not None:
        traits |= card.catalog_gpu.traits
    return frozenset(traits)


def _build_profiles(
    card: NvidiaCard, counters: Mapping[str, int]
) -> Iterator[model.Profile]:
    """Yield the types of the card's mode, and types of existing vGPUs.

    Types that policy does not offer are included with available 0, to
    account for their vGPUs.
    """
    existing = [p.profile for p in card.partitions]
    for name, (offer, properties) in card.types.items():
        is_other = bool(properties.instance) != card.is_mig
        if is_other and name not in existing:
            continue
        limits = [
            properties.limit,
            properties.limit_mixed if card.is_mixed else None,
        ]
        yield model.Profile(
            name=name,
            trait=mdev_names.profile_trait(name, VENDOR_ID, gpu=True),
            charges=type_sources.compute_charges(
                properties,
                counters,
                type_sources.count_slices(properties, card.kinds),
            ),
            available=min(
                0 if is_other else _count_ready(card, offer),
                _count_allowed(card, name, existing.count(name)),
            ),
            handles=offer.handles,
            device_api=offer.device_api,
            size=properties.size,
            limit=min((n for n in limits if n is not None), default=None),
            span=properties.span if card.is_mixed else 0,
            starts=properties.starts if card.is_mixed else (),
            instance=properties.instance,
            per_instance=properties.per_instance,
        )


def _count_ready(card: NvidiaCard, offer: type_sources.OfferedType) -> int:
    """Return how many more vGPUs of a type the driver can create.

    The driver creates none without a GPU instance. If claims create
    instances, each free VF counts.
    """
    if offer.gap:
        return 0
    if card.is_dynamic and offer.handles:
        taken = {p.parent for p in card.partitions}
        return sum(slot not in taken for slot in offer.handles)
    return offer.ready


def _count_allowed(card: NvidiaCard, name: str, count: int) -> int:
    """Return how many more of a type policy allows."""
    if not card.has_requested_mode or not card.rule.offers(name):
        return 0
    limit = card.rule.max_instances.get(name, count + len(card.slots))
    return max(0, limit - count)


def _fit_partition(
    card: NvidiaCard, partition: model.Partition
) -> model.Partition:
    """Return a partition without data of a mode the card is not in."""
    return dataclasses.replace(
        partition,
        start=partition.start if card.is_mixed else None,
        instance=partition.instance if card.is_mig else None,
    )


def _build_geometry(
    card: NvidiaCard, instances: tuple[model.Instance, ...]
) -> model.Geometry:
    catalog_gpu = card.catalog_gpu
    if card.is_mig:
        # The driver chooses the unit of placements: memory slices on A100,
        # thirds of them on RTX PRO 6000. So the kinds give the region.
        ends = (max(k.starts, default=0) + k.size for k in card.kinds)
        return model.Geometry(
            layout=model.Layout.MIG,
            region=max(ends, default=0),
            limit=len(card.slots),
            kinds=card.kinds,
            instances=instances,
            is_dynamic=card.is_dynamic,
        )
    limits = [properties.limit or 0 for _, properties in card.types.values()]
    max_vgpus = max(MAX_TIME_SLICED, *limits, 0)
    limit = min(len(card.slots), max_vgpus) if card.on_vfs else None
    if card.is_mixed:
        region = catalog_gpu.region if catalog_gpu else 0
        if card.has_placements:
            region = max(
                nvml_type.starts[-1] + nvml_type.span
                for nvml_type in card.nvml.types
                if nvml_type.starts
            )
        return model.Geometry(
            layout=model.Layout.MIXED, region=region, limit=limit
        )
    return model.Geometry(layout=model.Layout.EQUAL, limit=limit)


def _infer_instances(
    types: type_sources.Types, partitions: Iterable[model.Partition]
) -> tuple[tuple[model.Instance, ...], tuple[model.Partition, ...]]:
    """Return the instances that must exist, and partitions with theirs.

    The handle of an instance is made up if its id is unknown. A vGPU that
    may share an instance of unknown id gets none.
    """
    inside_by_handle: dict[str, list[type_sources.TypeProperties]] = {}
    placed = []
    for partition in partitions:
        properties = _find_mig_properties(types, partition.profile)
        handle = partition.instance
        if handle is None and properties and properties.per_instance == 1:
            handle = f"that of {partition.handle}"
        if handle is not None and properties:
            inside_by_handle.setdefault(handle, []).append(properties)
        placed.append(dataclasses.replace(partition, instance=handle))
    instances = [
        model.Instance(kind=inside[0].instance, handle=handle)
        for handle, inside in inside_by_handle.items()
    ]
    empty_kinds = {
        properties.instance
        for offer, properties in types.values()
        if properties.instance
        and offer.ready
        and not any(
            _has_room(inside, properties)
            for inside in inside_by_handle.values()
        )
    }
    instances += [
        model.Instance(kind=kind, handle=f"an empty {kind}")
        for kind in sorted(empty_kinds)
    ]
    return tuple(instances), tuple(placed)


def _find_mig_properties(
    types: type_sources.Types, name: str
) -> type_sources.TypeProperties | None:
    """Return the properties of a MIG type, None for other types."""
    if name not in types or not types[name][1].instance:
        return None
    return types[name][1]


def _has_room(
    inside: list[type_sources.TypeProperties],
    properties: type_sources.TypeProperties,
) -> bool:
    """Return whether an instance has room for one more of a type."""
    return (
        inside[0].instance == properties.instance
        and len(inside) < properties.per_instance
        and all(other.size == properties.size for other in inside)
    )
