# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA card: its mode, counters and profiles.

The two technologies read what their kernel interface shows and fill a
Card; what follows from that is here, once: the mode the card is in, what a
vGPU takes, what policy leaves of it, and the device as a whole.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from nova_accel import model
from nova_accel.catalog import loader, mdev_names, vgpu_types
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.nvidia import mig_instances, type_sources

VENDOR_ID = "10de"
# Of time-sliced vGPUs, however many VFs there are.
MAX_TIME_SLICED = vgpu_types.MAX_TIME_SLICED
# The host driver's kernel module.
MODULE = "nvidia"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvidiaCard:
    """A card as the host shows it.

    ``address`` is the PF's. ``told`` is what NVML says, ``offers`` the
    types by which the card is known, ``slots`` the VFs, or made-up names
    where vGPUs sit on the card itself; ``on_vfs`` tells which.
    ``is_managed`` is False where its own driver keeps what guests get,
    ``is_barred`` True where it makes none for a reason told already.
    """

    function: pci.PciFunction
    plugin: str
    technology: str
    rule: policy.Rule
    told: gpu_reader.NvmlGpu
    driver_version: str
    offers: tuple[type_sources.OfferedType, ...]
    partitions: tuple[model.Partition, ...]
    slots: tuple[str, ...]
    on_vfs: bool
    is_managed: bool = True
    is_barred: bool = False

    @property
    def address(self) -> str:
        """Return the PF's address."""
        return str(self.function.address)

    @functools.cached_property
    def types(self) -> type_sources.Types:
        """Return the types and their facts by name, in its order."""
        told = told_types(self.told)
        return {
            offer.name: (
                offer,
                type_sources.gather(
                    offer, told.get(offer.name), has_places=self.has_places
                ),
            )
            for offer in sorted(self.offers, key=lambda o: o.name)
        }

    @property
    def has_places(self) -> bool:
        """Return whether NVML has the places of mixed-size mode.

        Those of the catalogue are not used then, not even for other types.
        """
        return any(one.starts for one in self.told.types)

    @functools.cached_property
    def model_facts(self) -> vgpu_types.CatalogGpu | None:
        """Return what the catalogue knows of the model, or None."""
        return model_of(self.function, tuple(self.types))

    @property
    def model_name(self) -> str:
        """Return the model as its types, or the catalogue, name it."""
        shaped = [n for n, (_, facts) in self.types.items() if facts.size]
        if not shaped and self.model_facts is not None:
            return self.model_facts.key
        ids = f"{self.function.vendor}:{self.function.product}"
        return mdev_names.model_name(shaped, ids)

    @functools.cached_property
    def is_mig(self) -> bool:
        """Return whether the card is in MIG mode.

        Without NVML its types tell: in one mode none of the other's can
        be made, nor exist. Where none can be made, policy is believed.
        """
        if self.told.is_mig is not None:
            return self.told.is_mig
        made = {p.profile for p in self.partitions}
        alive = [
            bool(facts.instance)
            for name, (offer, facts) in self.types.items()
            if facts.size and (offer.ready or name in made)
        ]
        if not alive:
            return self.rule.use is policy.DeviceUse.MIG and self.can_mig
        return all(alive)

    @property
    def can_mig(self) -> bool:
        """Return whether the card has a MIG mode, as far as known."""
        facts = self.model_facts
        return facts is None or facts.can_mig

    @functools.cached_property
    def is_mixed(self) -> bool:
        """Return whether vGPUs of several sizes may share the card.

        Without NVML vGPUs of several sizes that exist tell; what could be
        created does not, as types of all sizes are listed by an empty card
        in either mode. Else policy is believed.
        """
        if self.is_mig or not self.can_mix:
            return False
        if self.told.is_mixed is not None:
            return self.told.is_mixed
        sizes = {
            self.types[one.profile][1].size
            for one in self.partitions
            if one.profile in self.types
        }
        return len(sizes - {0}) > 1 or bool(self.rule.is_mixed)

    @property
    def can_mix(self) -> bool:
        """Return whether the card has a mixed-size mode, as far as known."""
        facts = self.model_facts
        return self.on_vfs and (facts is None or facts.can_mix)

    @property
    def is_dynamic(self) -> bool:
        """Return whether GPU instances are made and unmade for claims."""
        return self.is_mig and self.rule.is_dynamic and bool(self.told.kinds)

    @property
    def is_wanted(self) -> bool:
        """Return whether policy's use and the card's mode agree."""
        return not (
            (self.rule.use is policy.DeviceUse.VGPU and self.is_mig)
            or (self.rule.use is policy.DeviceUse.MIG and not self.is_mig)
        )

    @functools.cached_property
    def kinds(self) -> tuple[model.InstanceKind, ...]:
        """Return the kinds of GPU instances the card can hold."""
        facts = self.model_facts
        return self.told.kinds or (facts.kinds if facts else ())


def told_types(
    told: gpu_reader.NvmlGpu,
) -> Mapping[str, gpu_reader.NvmlVgpuType]:
    """Return what NVML says of a card's types, by name without brand."""
    return {mdev_names.strip_brand(one.name): one for one in told.types}


def told_names(host: host_reader.HostReader) -> dict[str, str]:
    """Return the names without brand that NVML tells, by type number."""
    return {
        one.type_id: mdev_names.strip_brand(one.name)
        for told in host.gpus.values()
        for one in told.types
    }


def model_of(
    function: pci.PciFunction, type_names: tuple[str, ...]
) -> vgpu_types.CatalogGpu | None:
    """Return what the catalogue knows of a card's model, or None."""
    return loader.load().of_card(
        type_names,
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )


def told_of(host: host_reader.HostReader, address: str) -> gpu_reader.NvmlGpu:
    """Return what NVML says of a card; nothing where it says nothing."""
    return host.gpus.get(address) or gpu_reader.NvmlGpu(address=address)


def build(card: NvidiaCard) -> model.Device:
    """Return the card as a device, its room settled."""
    return device_capacity.settle(_device(card))


def _device(card: NvidiaCard) -> model.Device:
    counters = _counters(card)
    function = card.function
    instances, partitions = card.told.instances, card.partitions
    if card.is_mig and (
        card.told.is_mig is None or "instances" in card.told.unread
    ):
        instances, partitions = mig_instances.conclude(card.types, partitions)
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
        profiles=tuple(_profiles(card, counters)),
        partitions=tuple(_partition(card, p) for p in partitions),
        traits=_traits(card),
        geometry=_geometry(card, instances),
        is_managed=card.is_managed,
        vgpu_params=card.rule.vgpu_params,
    )


def _counters(card: NvidiaCard) -> dict[str, int]:
    counters = {names.GPU_CLASS: len(card.slots)}
    facts = card.model_facts
    memory = type_sources.memory_total(
        card.types,
        (p.profile for p in card.partitions),
        (facts.memory_mb if facts else 0) or card.told.memory_mb or 0,
    )
    if memory:
        counters[names.GPU_MEMORY_CLASS] = memory
    if card.is_mig:
        # The largest kind takes all slices: 7g on most cards, 4g on some.
        # NVML may list only smaller kinds, so the catalogue counts too.
        listed = [facts.mig_slices] if facts and facts.mig_slices else []
        listed += [kind.slices for kind in card.kinds]
        counters[names.MIG_SLICE_CLASS] = max(listed, default=7)
    return counters


def _traits(card: NvidiaCard) -> frozenset[str]:
    function = card.function
    traits = set(
        names.identity_traits(
            function.vendor, function.product, function.numa_node
        )
    )
    if ":" not in card.model_name:
        traits.add(names.model_trait(VENDOR_ID, card.model_name))
    version = card.told.driver_version or card.driver_version
    if version:
        traits.add(names.driver_trait(VENDOR_ID, version))
    if card.model_facts is not None:
        traits |= card.model_facts.traits
    return frozenset(traits)


def _profiles(
    card: NvidiaCard, counters: Mapping[str, int]
) -> Iterator[model.Profile]:
    """Yield the types of the card's mode, and what it holds in any.

    What policy doesn't offer is there to be counted.
    """
    made = [p.profile for p in card.partitions]
    for name, (offer, facts) in card.types.items():
        is_other = bool(facts.instance) != card.is_mig
        if is_other and name not in made:
            continue
        limits = [facts.limit, facts.limit_mixed if card.is_mixed else None]
        yield model.Profile(
            name=name,
            trait=mdev_names.profile_trait(name, VENDOR_ID, gpu=True),
            charges=type_sources.charges(
                facts, counters, type_sources.slices(facts, card.kinds)
            ),
            available=min(
                0 if is_other else _ready(card, offer),
                _allowed(card, name, made.count(name)),
            ),
            handles=offer.handles,
            device_api=offer.device_api,
            size=facts.size,
            limit=min((n for n in limits if n is not None), default=None),
            span=facts.span if card.is_mixed else 0,
            starts=facts.starts if card.is_mixed else (),
            instance=facts.instance,
            per_instance=facts.per_instance,
        )


def _ready(card: NvidiaCard, offer: type_sources.OfferedType) -> int:
    """Return the driver's own word of how many more can be made.

    It makes none whose GPU instance isn't there yet; where instances are
    made for claims, each free VF may have one.
    """
    if offer.gap:
        return 0
    if card.is_dynamic and offer.handles:
        taken = {p.parent for p in card.partitions}
        return sum(slot not in taken for slot in offer.handles)
    return offer.ready


def _allowed(card: NvidiaCard, name: str, held: int) -> int:
    """Return how many more of a type policy allows."""
    if not card.is_wanted or not card.rule.offers(name):
        return 0
    most = card.rule.max_instances.get(name, held + len(card.slots))
    return max(0, most - held)


def _partition(card: NvidiaCard, found: model.Partition) -> model.Partition:
    """Return a partition with what its card's mode makes meaningful."""
    return dataclasses.replace(
        found,
        start=found.start if card.is_mixed else None,
        instance=found.instance if card.is_mig else None,
    )


def _geometry(
    card: NvidiaCard, instances: tuple[model.Instance, ...]
) -> model.Geometry:
    facts = card.model_facts
    if card.is_mig:
        # The unit of a place is the driver's: memory slices on A100, thirds
        # of them on RTX PRO 6000. So the region follows from the kinds.
        ends = (max(k.starts, default=0) + k.size for k in card.kinds)
        return model.Geometry(
            layout=model.Layout.MIG,
            region=max(ends, default=0),
            limit=len(card.slots),
            kinds=card.kinds,
            instances=instances,
            is_dynamic=card.is_dynamic,
        )
    said = [fact.limit or 0 for _, fact in card.types.values()]
    most = max(MAX_TIME_SLICED, *said, 0)
    limit = min(len(card.slots), most) if card.on_vfs else None
    if card.is_mixed:
        region = facts.region if facts else 0
        if card.has_places:
            region = max(
                one.starts[-1] + one.span
                for one in card.told.types
                if one.starts
            )
        return model.Geometry(
            layout=model.Layout.MIXED, region=region, limit=limit
        )
    return model.Geometry(layout=model.Layout.EQUAL, limit=limit)
