# SPDX-License-Identifier: Apache-2.0
"""Driver of NVIDIA's vGPUs as mediated devices.

Up to Turing the card itself is the mdev parent. From Ampere on each of its
VFs is one, for one vGPU each; they are folded onto the card.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import mdev_names, vgpu_xml
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader, vgpu_config
from nova_accel.model import actions, names, pci
from nova_accel.vendors.nvidia import (
    diagnostics,
    gpu_card,
    plans,
    type_sources,
)

# As the generic mdev driver is asked to treat any parent.
_USES = (*plans.USES, policy.DeviceUse.MDEV)
_NO_TABLE = vgpu_xml.VgpuConfig()
_NO_API = "tells no device_api, without which no guest can have it"


class NvidiaMdevDriver:
    """Describes NVIDIA's mdev parents and plans their mdevs."""

    name = "nvidia_mdev"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each card with vGPU types, VFs folded in.

        A VF that is bound to a VFIO driver is in use as it is and makes no
        mdevs: it counts only if it holds one.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        views = tuple(_views(host))
        table = _NO_TABLE
        if views:
            told = gpu_card.told_names(host) | _told_names(views)
            table, problems = vgpu_config.read(host.files, told)
            table = dataclasses.replace(table, names={**table.names, **told})
            yield from problems
        for view in (dataclasses.replace(v, table=table) for v in views):
            if view.address in taken:
                continue
            rule = rules.rule(
                view.address, view.function.vendor, view.function.product
            )
            if rule.use not in _USES:
                continue
            if not view.mdevs and diagnostics.is_left_alone(
                view.function, rule
            ):
                yield diagnostics.left_alone(view.function)
                continue
            yield from view.unnamed()
            card = view.card(rule, host)
            if card.offers or card.partitions:
                yield from diagnostics.untyped(card, host.unknown())
                yield from diagnostics.describe(card)
            elif view.usable():
                yield model.Problem(
                    where=view.address,
                    reason="is an mdev parent without vGPU types: see the"
                    " kernel's log for NVRM messages, and whether nvidia's"
                    " vGPU services run",
                )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the making of the claim's mdev, and of what it needs."""
        making = actions.CreateMdev(
            parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
        )
        return tuple(plans.prepare(claim, making))

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the removal of the claim's mdev, and of what it needed."""
        unmaking = actions.RemoveMdev(
            parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
        )
        return tuple(plans.release(claim, unmaking))

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return what brings cards into the mode that policy asks for.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        return tuple(
            itertools.chain.from_iterable(
                plans.arrange(
                    host, rules, view.function, is_empty=not view.mdevs
                )
                for view in _views(host)
            )
        )


def cards(host: host_reader.HostReader) -> frozenset[str]:
    """Return the addresses of all cards that mdev parents belong to."""
    return frozenset(
        parent.physfn or parent.name for parent in host.mdev_parents()
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _MdevGpu:
    """A card with its parents, those that may make mdevs first."""

    function: pci.PciFunction
    parents: tuple[host_reader.MdevParent, ...]
    mdevs: tuple[host_reader.Mdev, ...]
    table: vgpu_xml.VgpuConfig = _NO_TABLE

    @property
    def address(self) -> str:
        return str(self.function.address)

    @property
    def on_vfs(self) -> bool:
        return any(p.physfn for p in self.parents)

    def unnamed(self) -> Iterator[model.Problem]:
        for parent in self.parents:
            for kind in parent.types:
                if not kind.label and kind.type_id not in self.labels:
                    yield model.Problem(
                        where=f"{parent.name} {kind.type_id}",
                        reason="has no name, and NVIDIA's type numbers"
                        " change with the driver; not offered",
                    )

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the types' names by id, from any parent of the card.

        What none of them names, another card of the host, NVML or the
        host driver's table may.
        """
        used = {k.type_id for parent in self.parents for k in parent.types}
        used |= {mdev.type_id for mdev in self.mdevs}
        written = {
            type_id: self.table.names[number]
            for type_id in used
            if (number := _number(type_id)) in self.table.names
        }
        return written | {
            kind.type_id: mdev_names.strip_brand(kind.label)
            for parent in self.parents
            for kind in parent.types
            if kind.label
        }

    def card(
        self, rule: policy.Rule, host: host_reader.HostReader
    ) -> gpu_card.NvidiaCard:
        usable = self.usable()
        offers = tuple(self._offers(usable))
        return gpu_card.NvidiaCard(
            function=self.function,
            plugin=NvidiaMdevDriver.name,
            technology="mdev",
            rule=rule,
            told=gpu_card.told_of(host, self.address),
            driver_version=host.module_version(gpu_card.MODULE),
            offers=offers,
            partitions=tuple(self._partitions()),
            slots=self._slots(offers, host),
            on_vfs=self.on_vfs,
        )

    def usable(self) -> tuple[host_reader.MdevParent, ...]:
        """Return the parents that make mdevs, or hold one.

        Once VFs are on, the PF itself offers no type any more.
        """
        holding = {m.parent for m in self.mdevs}
        return tuple(
            p
            for p in self.parents
            if (p.physfn or not self.on_vfs)
            and (p.name in holding or not _is_given_away(p.function))
        )

    def _offers(
        self, usable: tuple[host_reader.MdevParent, ...]
    ) -> Iterator[type_sources.OfferedType]:
        labels = self.labels
        kinds: dict[str, dict[str, host_reader.MdevType]] = {}
        for parent in usable:
            for kind in parent.types:
                label = labels.get(kind.type_id)
                if not label:
                    continue
                same = kinds.setdefault(label, {})
                other = same.get(parent.name)
                if other is None or (other.available or 0) < (
                    kind.available or 0
                ):
                    same[parent.name] = kind
        for name, by_parent in kinds.items():
            number = _number(next(iter(by_parent.values())).type_id)
            yield dataclasses.replace(
                _offer(name, by_parent, on_vfs=self.on_vfs),
                written=self.table.facts(number, self.function),
            )

    def _partitions(self) -> Iterator[model.Partition]:
        labels = self.labels
        for mdev in self.mdevs:
            yield model.Partition(
                profile=labels.get(mdev.type_id, mdev.type_id)
                or model.UNKNOWN,
                parent=mdev.parent,
                handle=mdev.uuid,
                is_nameless=bool(mdev.type_id) and mdev.type_id not in labels,
            )

    def _slots(
        self,
        offers: tuple[type_sources.OfferedType, ...],
        host: host_reader.HostReader,
    ) -> tuple[str, ...]:
        """Return the identifiers of all slots the card could ever have.

        They must not depend on what is made now, or one that a server
        holds could vanish: VFs by address, else as many as the driver
        says fit of its smallest type.
        """
        if self.on_vfs:
            return self._vf_slots(host)
        told = gpu_card.told_types(gpu_card.told_of(host, self.address))
        limits = [
            type_sources.gather(o, told.get(o.name)).limit for o in offers
        ]
        most = max(
            (n or gpu_card.MAX_TIME_SLICED for n in limits),
            default=gpu_card.MAX_TIME_SLICED,
        )
        return names.slot_names(max(most, len(self.mdevs)))

    def _vf_slots(self, host: host_reader.HostReader) -> tuple[str, ...]:
        """Return the VFs that are not given away, unreadable ones too."""
        holding = {m.parent for m in self.mdevs}
        found = dict.fromkeys(map(str, self.function.virtual_functions))
        found |= dict.fromkeys(p.name for p in self.parents if p.physfn)
        return tuple(
            sorted(
                (
                    name
                    for name in found
                    if name in holding
                    or not _is_given_away(host.function(name))
                ),
                key=pci.parse_address,
            )
        )


def _views(host: host_reader.HostReader) -> Iterator[_MdevGpu]:
    """Yield NVIDIA's cards with mdev parents, in the order of addresses."""
    parents: dict[str, list[host_reader.MdevParent]] = collections.defaultdict(
        list
    )
    for parent in host.mdev_parents():
        parents[parent.physfn or parent.name].append(parent)
    for address, members in sorted(parents.items()):
        function = host.function(address)
        if function is None or function.vendor != gpu_card.VENDOR_ID:
            continue  # off the bus, another's, or the reader has said why
        places = {address, *(p.name for p in members)}
        places |= set(map(str, function.virtual_functions))
        yield _MdevGpu(
            function=function,
            parents=tuple(sorted(members, key=lambda p: p.physfn is None)),
            mdevs=tuple(m for m in host.mdevs() if m.parent in places),
        )


def _told_names(views: Iterable[_MdevGpu]) -> dict[str, str]:
    """Return the names without brand that any parent tells, by number."""
    return {
        _number(type_id): name
        for view in views
        for type_id, name in view.labels.items()
    }


def _number(type_id: str) -> str:
    """Return the driver's number of a type: 222 of ``nvidia-222``."""
    return type_id.rpartition("-")[2]


def _is_given_away(function: pci.PciFunction | None) -> bool:
    return function is not None and function.is_vfio_bound


def _offer(
    name: str, kinds: Mapping[str, host_reader.MdevType], *, on_vfs: bool
) -> type_sources.OfferedType:
    """Return a type as its parents describe it together.

    A VF makes one mdev and doesn't know its siblings' memory: VFs that
    could make one are counted, not added up.
    """
    said = [
        mdev_names.parse_description(k.description) for k in kinds.values()
    ]
    left = [kind.available or 0 for kind in kinds.values()]
    api = next((k.device_api for k in kinds.values() if k.device_api), "")
    return type_sources.OfferedType(
        name=name,
        ready=sum(n > 0 for n in left) if on_vfs else sum(left),
        handles={parent: kind.type_id for parent, kind in kinds.items()},
        device_api=api,
        said=mdev_names.TypeDescription(
            memory_mb=_largest(s.memory_mb for s in said),
            max_instances=_largest(s.max_instances for s in said),
        ),
        gap="" if api else _NO_API,
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)
