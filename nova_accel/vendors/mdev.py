# SPDX-License-Identifier: Apache-2.0
"""Driver of mediated devices (mdevs) that no other driver describes.

For Intel GVT-g, s390 crypto (vfio-ap) and subchannels (vfio-ccw), mtty, and
unknown mdev parents. A parent is a physical device or one of its VFs; all
parents of a physical device are described as one device.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import mdev_names, pci_ids
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import driver_base, mdev_parents

# Upper bound of slots on one parent. vfio_ap reports 65535 available
# instances whatever the hardware: AP has 256 adapters (0x00-0xff), and a
# guest needs one of its own.
MAX_SLOTS = 256

# Slots of parents with a fixed number, by device API: a subchannel goes to
# one guest (drivers/s390/cio/vfio_ccw_drv.c, available_instances).
_FIXED_SLOTS = {"vfio-ccw": 1}

# Left to the driver nvidia_mdev, which has the data that NVIDIA's mdev
# types lack, and reports why a card is not offered.
_NVIDIA = "10de"


class MdevDriver(driver_base.DriverBase):
    """Describes mdev parents and plans the mdevs of claims."""

    name = "mdev"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each of its parents on no VF, or with VFs.

        A function that is bound to a VFIO driver can create no mdevs; it
        counts only if an mdev exists on it.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        existing = card.mdevs()
        groups = mdev_parents.group_by_device(card.mdev_parents())
        for address, parents in groups.items():
            if address in taken:
                continue
            device = _MdevCard(
                address=address,
                function=card.function(address),
                parents=parents,
                mdevs=tuple(
                    m
                    for m in existing
                    if m.parent in {p.name for p in parents}
                ),
            )
            if device.function is None and pci.is_address(address):
                continue  # the reader reports it
            if device.vendor_id != _NVIDIA and device.is_wanted(rules):
                yield from device.describe()

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the action that creates the claim's mdev."""
        return (
            actions.CreateMdev(
                parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
            ),
        )

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the action that removes the claim's mdev."""
        return (
            actions.RemoveMdev(
                parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
            ),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _OfferedProfile:
    """A profile that one or several parents offer.

    ``handles`` are the type ids by parent, ``ready`` the numbers that each
    parent can still create.
    """

    name: str
    memory_mb: int | None
    limit: int | None
    device_api: str
    handles: Mapping[str, str]
    ready: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _MdevCard(mdev_parents.ParentGroup):
    """One physical device with all its parents and mdevs."""

    address: str
    function: pci.PciFunction | None

    @property
    def vendor_id(self) -> str:
        return self.function.vendor if self.function else ""

    @property
    def product_id(self) -> str:
        return self.function.product if self.function else ""

    @property
    def is_gpu(self) -> bool:
        function = self.function
        return function is not None and pci_ids.is_gpu(function)

    @property
    def resource_class(self) -> str:
        return names.GPU_CLASS if self.is_gpu else names.MDEV_CLASS

    def is_wanted(self, rules: policy.DeviceRules) -> bool:
        use = rules.rule(self.address, self.vendor_id, self.product_id).use
        return use in (policy.DeviceUse.AUTO, policy.DeviceUse.MDEV) or (
            use is policy.DeviceUse.VGPU and self.is_gpu
        )

    def describe(self) -> Iterator[model.Device | model.Problem]:
        usable = self.usable_parents()
        if not usable and not self.mdevs:
            return
        offers = self._list_offers(usable)
        for offer in offers:
            gap = _find_gap(offer, offers)
            if gap:
                yield model.Problem(
                    where=f"{self.address} {offer.name}",
                    reason=f"{gap}; not offered",
                    address=self.address,
                )
        if not offers and not self.mdevs:
            yield model.Problem.of_device(
                self.address, "is an mdev parent without types"
            )
            return
        yield self._build_device(usable, offers)

    def _list_offers(
        self, usable: mdev_parents.Parents
    ) -> tuple[_OfferedProfile, ...]:
        mdev_types: dict[str, dict[str, host_reader.MdevType]] = {}
        for parent in usable:
            for mdev_type in parent.types:
                same = mdev_types.setdefault(
                    self._get_profile_name(mdev_type), {}
                )
                same.setdefault(parent.name, mdev_type)
        return tuple(
            _build_offer(name, mdev_types[name]) for name in sorted(mdev_types)
        )

    def _get_profile_name(self, mdev_type: host_reader.MdevType) -> str:
        return mdev_names.profile_name(
            mdev_type.type_id, mdev_type.label, self.vendor_id
        )

    def _count_available(self, offer: _OfferedProfile) -> int:
        """Return how many more mdevs of a profile the parents can create.

        A VF is one slot, for one mdev.
        """
        if self.on_vfs:
            occupied = self.occupied
            return sum(
                count > 0 and parent not in occupied
                for parent, count in offer.ready.items()
            )
        return sum(offer.ready.values())

    def _list_partitions(self) -> tuple[model.Partition, ...]:
        named = {
            (parent.name, mdev_type.type_id): self._get_profile_name(mdev_type)
            for parent in self.parents
            for mdev_type in parent.types
        }
        return tuple(
            model.Partition(
                profile=named.get((m.parent, m.type_id), m.type_id)
                or "unknown",
                parent=m.parent,
                handle=m.uuid,
            )
            for m in self.mdevs
        )

    def _build_device(
        self,
        usable: mdev_parents.Parents,
        offers: tuple[_OfferedProfile, ...],
    ) -> model.Device:
        function = self.function
        partitions = self._list_partitions()
        described = tuple(self._build_profile(o, offers) for o in offers)
        counters = {}
        if any(names.GPU_MEMORY_CLASS in p.charges for p in described):
            counters[names.GPU_MEMORY_CLASS] = _compute_memory_total(
                described, partitions
            )
        return device_capacity.recalculate(
            model.Device(
                address=self.address,
                plugin=MdevDriver.name,
                technology="mdev",
                vendor=names.vendor_name(self.vendor_id),
                model=(
                    f"{self.vendor_id}:{self.product_id}"
                    if function
                    else self.address
                ),
                resource_class=self.resource_class,
                counters=counters,
                slots=self._list_slots(usable, offers),
                vendor_id=self.vendor_id,
                product_id=self.product_id,
                driver=function.driver if function else self.parents[0].driver,
                numa_node=function.numa_node if function else None,
                profiles=described,
                partitions=partitions,
                traits=names.identity_traits(
                    self.vendor_id,
                    self.product_id,
                    function.numa_node if function else None,
                ),
            )
        )

    def _build_profile(
        self, offer: _OfferedProfile, offers: tuple[_OfferedProfile, ...]
    ) -> model.Profile:
        charges = {self.resource_class: 1}
        if self.is_gpu and offer.memory_mb:
            charges[names.GPU_MEMORY_CLASS] = offer.memory_mb
        return model.Profile(
            name=offer.name,
            trait=mdev_names.profile_trait(
                offer.name, self.vendor_id, gpu=self.is_gpu
            ),
            charges=charges,
            available=0
            if _find_gap(offer, offers)
            else self._count_available(offer),
            handles=offer.handles,
            device_api=offer.device_api,
            size=offer.memory_mb or 0,
            limit=offer.limit,
        )

    def _list_slots(
        self,
        usable: mdev_parents.Parents,
        offers: tuple[_OfferedProfile, ...],
    ) -> tuple[str, ...]:
        """Return the identifiers of all slots the card can have.

        They do not depend on existing mdevs, or the slot of a server could
        disappear. They are the addresses of VFs, else as many names as the
        vendor's limit, or MAX_SLOTS if it states none.
        """
        if self.on_vfs:
            return tuple(p.name for p in usable)
        limits = [
            o.limit or _FIXED_SLOTS.get(o.device_api, MAX_SLOTS)
            for o in offers
            if not _find_gap(o, offers)
        ]
        count = max(max(limits, default=0), len(self.mdevs))
        return names.slot_names(min(count, MAX_SLOTS))


def _build_offer(
    name: str, mdev_types: Mapping[str, host_reader.MdevType]
) -> _OfferedProfile:
    """Return a profile with the data of its type on all parents."""
    descriptions = [
        mdev_names.parse_description(mdev_type.description)
        for mdev_type in mdev_types.values()
    ]
    return _OfferedProfile(
        name=name,
        memory_mb=mdev_parents.max_or_none(f.memory_mb for f in descriptions),
        limit=mdev_parents.max_or_none(f.max_instances for f in descriptions),
        device_api=mdev_parents.find_device_api(mdev_types.values()),
        handles={
            parent: mdev_type.type_id
            for parent, mdev_type in mdev_types.items()
        },
        ready={
            parent: mdev_type.available or 0
            for parent, mdev_type in mdev_types.items()
        },
    )


def _find_gap(
    offer: _OfferedProfile, offers: tuple[_OfferedProfile, ...]
) -> str:
    """Return which data a profile lacks, or ""."""
    if not offer.device_api:
        return "has no device_api, without which no guest can have it"
    if offer.memory_mb is None and any(o.memory_mb for o in offers):
        return "has no memory size, while others of the device do"
    return ""


def _compute_memory_total(
    profiles: Iterable[model.Profile],
    partitions: Iterable[model.Partition],
) -> int:
    """Return the memory of existing and of further mdevs, in MiB.

    No file shows how much of a GPU's aperture GVT-g can assign. It creates
    min(low / low_gm_size, high / high_gm_size, fences / 4) mdevs of a type
    (drivers/gpu/drm/i915/gvt), so the type that fills the rest best gives
    the usable memory. If the high part or the fences are exhausted first,
    the result is smaller than the aperture, and no guest could get more.
    """
    sizes = {p.name: p.size for p in profiles}
    allocated = sum(sizes.get(p.profile, 0) for p in partitions)
    return allocated + max((p.available * p.size for p in profiles), default=0)
