# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: any mdev parent, whatever its vendor.

A parent is the physical device itself (NVIDIA up to Turing, Intel GVT-g,
mtty, s390's matrix and subchannels) or, on NVIDIA's SR-IOV cards, each of
its virtual functions; those are folded onto their physical function.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import actions, model, names, pci, policy, profiles
from nova_accel.host import sysfs

# Upper bound of slots on one parent. vfio_ap reports 65535 free instances,
# which says nothing of the hardware: AP has 256 adapters (0x00-0xff), and
# a guest without one of its own gets no crypto.
MAX_SLOTS = 256

# Kinds of which a parent never makes more, by device API: a subchannel is
# given away whole (drivers/s390/cio/vfio_ccw_drv.c, available_instances).
_FIXED_SLOTS = {"vfio-ccw": 1}

_NVIDIA = "10de"


class MdevDriver:
    """Describes mdev parents and plans the mdevs of claims."""

    name = "mdev"

    def describe(
        self,
        host: sysfs.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each physical device with mdev types.

        A virtual function that is bound to a VFIO driver is in use as it
        is and makes no mdevs: it counts only if it holds one.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        existing = host.mdevs()
        for address, parents in _by_device(host.mdev_parents()).items():
            if address in taken:
                continue
            card = _Card(
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
            rule = rules.rule(address, card.vendor_id, card.product_id)
            if rule.use in (policy.Use.AUTO, policy.Use.MDEV):
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
        self, host: sysfs.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action: an mdev parent has no mode to lose."""
        return ()


def _by_device(
    parents: Iterable[sysfs.MdevParent],
) -> Mapping[str, tuple[sysfs.MdevParent, ...]]:
    """Return parents by the address of their physical device."""
    found: dict[str, list[sysfs.MdevParent]] = collections.defaultdict(list)
    for parent in parents:
        found[parent.physfn or parent.name].append(parent)
    return {
        # Once VFs are on, the PF itself offers no type any more.
        address: tuple(
            sorted((p for p in members), key=lambda p: p.physfn is None)
        )
        for address, members in sorted(found.items())
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Offer:
    """One profile as one or several parents offer it."""

    name: str
    facts: profiles.TypeFacts
    device_api: str
    handles: Mapping[str, str]
    ready: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Card:
    """One physical device with all its parents and mdevs."""

    address: str
    function: pci.PciFunction | None
    parents: tuple[sysfs.MdevParent, ...]
    mdevs: tuple[sysfs.Mdev, ...]

    @property
    def vendor_id(self) -> str:
        return self.function.vendor if self.function else ""

    @property
    def product_id(self) -> str:
        return self.function.product if self.function else ""

    @property
    def is_gpu(self) -> bool:
        """Return whether this is a GPU; NVIDIA makes mdevs of no other."""
        return self.function is not None and (
            self.function.is_display or self.vendor_id == _NVIDIA
        )

    @property
    def resource_class(self) -> str:
        return names.GPU_CLASS if self.is_gpu else names.MDEV_CLASS

    @property
    def on_vfs(self) -> bool:
        return any(p.physfn for p in self.parents)

    def describe(self) -> Iterator[model.Device | model.Problem]:
        usable = self._usable()
        if not usable and not self.mdevs:
            return
        yield from self._unnamed()
        offers = self._offers(usable)
        yield from self._withheld(offers)
        if not offers and not self.mdevs:
            yield model.Problem(
                where=self.address, reason="is an mdev parent without types"
            )
            return
        yield self._device(usable, offers)

    def _usable(self) -> tuple[sysfs.MdevParent, ...]:
        """Return the parents that make mdevs, or hold one."""
        holding = {m.parent for m in self.mdevs}
        return tuple(
            p
            for p in self.parents
            if (p.physfn or not self.on_vfs)
            and (p.name in holding or not _is_given_away(p))
        )

    def _unnamed(self) -> Iterator[model.Problem]:
        """Yield what has no name, where only the name is an identity."""
        if self.vendor_id != _NVIDIA:
            return
        for parent in self.parents:
            for kind in parent.types:
                if not kind.label:
                    yield model.Problem(
                        where=f"{parent.name} {kind.type_id}",
                        reason="has no name, and NVIDIA's type numbers"
                        " change with the driver; not offered",
                    )

    def _withheld(self, offers: tuple[_Offer, ...]) -> Iterator[model.Problem]:
        """Yield the profiles that can't be offered for what they hide."""
        for offer in offers:
            gap = _gap(offer, offers)
            if gap:
                yield model.Problem(
                    where=f"{self.address} {offer.name}",
                    reason=f"{gap}; not offered",
                )

    def _profile_name(self, kind: sysfs.MdevType) -> str:
        return profiles.profile_name(kind.type_id, kind.label, self.vendor_id)

    def _offers(
        self, usable: tuple[sysfs.MdevParent, ...]
    ) -> tuple[_Offer, ...]:
        kinds: dict[str, dict[str, sysfs.MdevType]] = {}
        for parent in usable:
            for kind in parent.types:
                if self.vendor_id == _NVIDIA and not kind.label:
                    continue
                same = kinds.setdefault(self._profile_name(kind), {})
                same.setdefault(parent.name, kind)
        return tuple(_offer(name, kinds[name]) for name in sorted(kinds))

    def _available(
        self, offer: _Offer, partitions: tuple[model.Partition, ...]
    ) -> int:
        """Return how many more of a profile the card can make now.

        A VF holds one mdev and doesn't know its siblings' memory: the
        vendor's limit for the card (max_instance) holds beside it.
        """
        if not self.on_vfs:
            return sum(offer.ready.values())
        ready = sum(1 for count in offer.ready.values() if count > 0)
        limit = offer.facts.max_instances
        if limit is None:
            return ready
        held = sum(1 for p in partitions if p.profile == offer.name)
        return max(0, min(ready, limit - held))

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
        usable: tuple[sysfs.MdevParent, ...],
        offers: tuple[_Offer, ...],
    ) -> model.Device:
        partitions = self._partitions()
        available = {
            o.name: 0 if _gap(o, offers) else self._available(o, partitions)
            for o in offers
        }
        total = len(partitions) + max(available.values(), default=0)
        slots = self._slots(usable, offers)
        counters = {self.resource_class: min(total, len(slots))}
        memory = _memory_total(offers) if self.is_gpu else None
        if memory is not None:
            counters[names.GPU_MEMORY_CLASS] = memory
        function = self.function
        return model.Device(
            address=self.address,
            plugin=MdevDriver.name,
            technology="mdev",
            vendor=names.vendor_name(self.vendor_id),
            model=self._model(offers),
            resource_class=self.resource_class,
            counters=counters,
            slots=slots,
            vendor_id=self.vendor_id,
            product_id=self.product_id,
            driver=function.driver if function else self.parents[0].driver,
            numa_node=function.numa_node if function else None,
            profiles=tuple(
                self._profile(o, available[o.name], memory) for o in offers
            ),
            partitions=partitions,
            traits=names.identity_traits(
                self.vendor_id,
                self.product_id,
                function.numa_node if function else None,
            ),
        )

    def _profile(
        self, offer: _Offer, available: int, memory: int | None
    ) -> model.Profile:
        charges = {self.resource_class: 1}
        if memory is not None and offer.facts.memory_mb:
            charges[names.GPU_MEMORY_CLASS] = offer.facts.memory_mb
        return model.Profile(
            name=offer.name,
            trait=profiles.profile_trait(
                offer.name, self.vendor_id, gpu=self.is_gpu
            ),
            charges=charges,
            available=available,
            handles=offer.handles,
            device_api=offer.device_api,
        )

    def _slots(
        self,
        usable: tuple[sysfs.MdevParent, ...],
        offers: tuple[_Offer, ...],
    ) -> tuple[str, ...]:
        """Return the identifiers of all slots the card could ever have.

        They must not depend on what is made now, or one that a server
        holds could vanish: VFs by address, else as many as the vendor's
        limit, or MAX_SLOTS where it states none.
        """
        if self.on_vfs:
            return tuple(p.name for p in usable)
        told = [o for o in offers if not _gap(o, offers)]
        limits = [
            o.facts.max_instances or _FIXED_SLOTS.get(o.device_api, MAX_SLOTS)
            for o in told
        ]
        wanted = max(max(limits, default=0), len(self.mdevs))
        return names.slot_names(min(wanted, MAX_SLOTS))

    def _model(self, offers: tuple[_Offer, ...]) -> str:
        if self.function is None:
            return self.address
        ids = f"{self.vendor_id}:{self.product_id}"
        if self.vendor_id != _NVIDIA:
            return ids
        return profiles.model_name([o.name for o in offers], ids)


def _is_given_away(parent: sysfs.MdevParent) -> bool:
    return parent.function is not None and parent.function.is_vfio_bound


def _offer(name: str, kinds: Mapping[str, sysfs.MdevType]) -> _Offer:
    """Return a profile as its parents' types describe it together."""
    facts = [profiles.parse_description(k.description) for k in kinds.values()]
    return _Offer(
        name=name,
        facts=profiles.TypeFacts(
            memory_mb=_largest(f.memory_mb for f in facts),
            max_instances=_largest(f.max_instances for f in facts),
        ),
        device_api=next(
            (k.device_api for k in kinds.values() if k.device_api), ""
        ),
        handles={parent: kind.type_id for parent, kind in kinds.items()},
        ready={parent: kind.available or 0 for parent, kind in kinds.items()},
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _gap(offer: _Offer, offers: tuple[_Offer, ...]) -> str:
    """Return what a profile fails to tell, empty if nothing is missing."""
    if not offer.device_api:
        return "tells no device_api, without which no guest can have it"
    if offer.facts.memory_mb is None and any(
        o.facts.memory_mb for o in offers
    ):
        return "tells no framebuffer, while others of the card do"
    return ""


def _memory_total(offers: tuple[_Offer, ...]) -> int | None:
    """Return the card's framebuffer in MiB, None when it isn't told.

    The types that divide the card without a rest name all of it; types of
    another size (3Q on 16 GiB) name a little less.
    """
    told = [o for o in offers if not _gap(o, offers)]
    sizes = [
        (o.facts.memory_mb or 0) * (o.facts.max_instances or 0) for o in told
    ]
    return max(sizes) if sizes and all(sizes) else None
