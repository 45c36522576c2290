# SPDX-License-Identifier: Apache-2.0
"""Driver of mediated devices that no other driver describes.

Intel's GVT-g, s390's matrix and subchannels, mtty, and whatever comes. A
parent is the physical device itself or one of its virtual functions; those
are folded onto their physical function.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import mdev_names, pci_ids
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci

# Upper bound of slots on one parent. vfio_ap reports 65535 free instances,
# which says nothing of the hardware: AP has 256 adapters (0x00-0xff), and
# a guest without one of its own gets no crypto.
MAX_SLOTS = 256

# Kinds of which a parent never makes more, by device API: a subchannel is
# given away whole (drivers/s390/cio/vfio_ccw_drv.c, available_instances).
_FIXED_SLOTS = {"vfio-ccw": 1}

# The driver nvidia_mdev knows what NVIDIA's types don't tell, and why a
# card of theirs is not offered.
_NVIDIA = "10de"


class MdevDriver:
    """Describes mdev parents and plans the mdevs of claims."""

    name = "mdev"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each physical device with mdev types.

        A function that is bound to a VFIO driver is in use as it is and
        makes no mdevs: it counts only if it holds one.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        existing = host.mdevs()
        for address, parents in _by_device(host.mdev_parents()).items():
            if address in taken:
                continue
            card = _MdevCard(
                address=address,
                function=host.function(address),
                parents=parents,
                mdevs=tuple(
                    m
                    for m in existing
                    if m.parent in {p.name for p in parents}
                ),
            )
            if card.function is None and pci.is_address(address):
                continue  # the reader has listed why
            if card.vendor_id != _NVIDIA and card.is_wanted(rules):
                yield from card.describe()

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the making of the claim's mdev."""
        return (
            actions.CreateMdev(
                parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
            ),
        )

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the removal of the claim's mdev."""
        return (
            actions.RemoveMdev(
                parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
            ),
        )

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action: an mdev parent has no mode to lose."""
        return ()


def _by_device(
    parents: Iterable[host_reader.MdevParent],
) -> Mapping[str, tuple[host_reader.MdevParent, ...]]:
    """Return parents by the address of their physical device."""
    found: dict[str, list[host_reader.MdevParent]] = collections.defaultdict(
        list
    )
    for parent in parents:
        found[parent.physfn or parent.name].append(parent)
    return {
        address: tuple(sorted(members, key=lambda p: p.physfn is None))
        for address, members in sorted(found.items())
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _OfferedProfile:
    """One profile as one or several parents offer it."""

    name: str
    memory_mb: int | None
    limit: int | None
    device_api: str
    handles: Mapping[str, str]
    ready: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _MdevCard:
    """One physical device with all its parents and mdevs."""

    address: str
    function: pci.PciFunction | None
    parents: tuple[host_reader.MdevParent, ...]
    mdevs: tuple[host_reader.Mdev, ...]

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

    @property
    def on_vfs(self) -> bool:
        return any(p.physfn for p in self.parents)

    def is_wanted(self, rules: policy.Policy) -> bool:
        use = rules.rule(self.address, self.vendor_id, self.product_id).use
        return use in (policy.DeviceUse.AUTO, policy.DeviceUse.MDEV) or (
            use is policy.DeviceUse.VGPU and self.is_gpu
        )

    def describe(self) -> Iterator[model.Device | model.Problem]:
        usable = self._usable()
        if not usable and not self.mdevs:
            return
        offers = self._offers(usable)
        for offer in offers:
            gap = _gap(offer, offers)
            if gap:
                yield model.Problem(
                    where=f"{self.address} {offer.name}",
                    reason=f"{gap}; not offered",
                )
        if not offers and not self.mdevs:
            yield model.Problem(
                where=self.address, reason="is an mdev parent without types"
            )
            return
        yield self._device(usable, offers)

    def _usable(self) -> tuple[host_reader.MdevParent, ...]:
        """Return the parents that make mdevs, or hold one.

        Beside VFs that make them, the PF itself is none.
        """
        holding = {m.parent for m in self.mdevs}
        return tuple(
            p
            for p in self.parents
            if (p.physfn or not self.on_vfs)
            and (p.name in holding or not _is_given_away(p))
        )

    def _offers(
        self, usable: tuple[host_reader.MdevParent, ...]
    ) -> tuple[_OfferedProfile, ...]:
        kinds: dict[str, dict[str, host_reader.MdevType]] = {}
        for parent in usable:
            for kind in parent.types:
                same = kinds.setdefault(self._profile_name(kind), {})
                same.setdefault(parent.name, kind)
        return tuple(_offer(name, kinds[name]) for name in sorted(kinds))

    def _profile_name(self, kind: host_reader.MdevType) -> str:
        return mdev_names.profile_name(
            kind.type_id, kind.label, self.vendor_id
        )

    def _available(self, offer: _OfferedProfile) -> int:
        """Return how many more of a profile the parents say they can make.

        A slot on a VF is the VF: one mdev each.
        """
        if self.on_vfs:
            return sum(1 for count in offer.ready.values() if count > 0)
        return sum(offer.ready.values())

    def _partitions(self) -> tuple[model.Partition, ...]:
        named = {
            (parent.name, kind.type_id): self._profile_name(kind)
            for parent in self.parents
            for kind in parent.types
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

    def _device(
        self,
        usable: tuple[host_reader.MdevParent, ...],
        offers: tuple[_OfferedProfile, ...],
    ) -> model.Device:
        function = self.function
        partitions = self._partitions()
        described = tuple(self._profile(o, offers) for o in offers)
        counters = {}
        if any(names.GPU_MEMORY_CLASS in p.charges for p in described):
            counters[names.GPU_MEMORY_CLASS] = _memory_total(
                described, partitions
            )
        return device_capacity.settle(
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
                slots=self._slots(usable, offers),
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

    def _profile(
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
            available=0 if _gap(offer, offers) else self._available(offer),
            handles=offer.handles,
            device_api=offer.device_api,
            size=offer.memory_mb or 0,
            limit=offer.limit,
        )

    def _slots(
        self,
        usable: tuple[host_reader.MdevParent, ...],
        offers: tuple[_OfferedProfile, ...],
    ) -> tuple[str, ...]:
        """Return the identifiers of all slots the card could ever have.

        They must not depend on what is made now, or one that a server
        holds could vanish: VFs by address, else as many as the vendor's
        limit, or MAX_SLOTS where it states none.
        """
        if self.on_vfs:
            return tuple(p.name for p in usable)
        limits = [
            o.limit or _FIXED_SLOTS.get(o.device_api, MAX_SLOTS)
            for o in offers
            if not _gap(o, offers)
        ]
        wanted = max(max(limits, default=0), len(self.mdevs))
        return names.slot_names(min(wanted, MAX_SLOTS))


def _is_given_away(parent: host_reader.MdevParent) -> bool:
    return parent.function is not None and parent.function.is_vfio_bound


def _offer(
    name: str, kinds: Mapping[str, host_reader.MdevType]
) -> _OfferedProfile:
    """Return a profile as its parents' types describe it together."""
    facts = [
        mdev_names.parse_description(k.description) for k in kinds.values()
    ]
    return _OfferedProfile(
        name=name,
        memory_mb=_largest(f.memory_mb for f in facts),
        limit=_largest(f.max_instances for f in facts),
        device_api=next(
            (k.device_api for k in kinds.values() if k.device_api), ""
        ),
        handles={parent: kind.type_id for parent, kind in kinds.items()},
        ready={parent: kind.available or 0 for parent, kind in kinds.items()},
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _gap(offer: _OfferedProfile, offers: tuple[_OfferedProfile, ...]) -> str:
    """Return what a profile fails to tell, empty if nothing is missing."""
    if not offer.device_api:
        return "tells no device_api, without which no guest can have it"
    if offer.memory_mb is None and any(o.memory_mb for o in offers):
        return "tells no memory, while others of the device do"
    return ""


def _memory_total(
    described: Iterable[model.Profile],
    partitions: Iterable[model.Partition],
) -> int:
    """Return the memory that mdevs have, or could have beside them, in MiB.

    No file tells how much of a GPU's aperture GVT-g may share out. It
    makes min(low / low_gm_size, high / high_gm_size, fences / 4) of a type
    (drivers/gpu/drm/i915/gvt), so the type of which the rest holds most
    tells what can be had of it. Where the high part or the fences run out
    first that is less than the aperture, and rightly: no guest gets more.
    """
    sizes = {p.name: p.size for p in described}
    held = sum(sizes.get(p.profile, 0) for p in partitions)
    return held + max((p.available * p.size for p in described), default=0)
