# SPDX-License-Identifier: Apache-2.0
"""Driver of NVIDIA vGPUs that are mediated devices.

Up to Turing the card is the mdev parent. From Ampere on each VF is a parent
of one vGPU; all VFs of a card are described as one device.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import mdev_names, vgpu_xml
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader, vgpu_config
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import mdev_parents
from nova_accel.vendors.nvidia import (
    diagnostics,
    gpu_card,
    plans,
    type_sources,
)

# The generic mdev driver also serves use mdev.
_USES = (*plans.USES, policy.DeviceUse.MDEV)
_NO_CONFIG = vgpu_xml.VgpuConfig()
_NO_API = "has no device_api, without which no guest can have it"


class NvidiaMdevDriver:
    """Describes NVIDIA mdev parents and plans their mdevs."""

    name = "nvidia_mdev"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each GPU of the card with vGPU types.

        A VF that is bound to a VFIO driver can create no mdevs; it counts
        only if an mdev exists on it.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        gpus = tuple(_read_gpus(card))
        table = _NO_CONFIG
        if gpus:
            type_names = {
                **gpu_card.read_nvml_names(card),
                **card.once(_read_host_labels),
                **_read_label_names(gpus),
            }
            table, problems = vgpu_config.read(card.files, type_names)
            table = dataclasses.replace(
                table, names={**table.names, **type_names}
            )
            yield from problems
        for gpu in (dataclasses.replace(v, table=table) for v in gpus):
            rule = rules.rule(
                gpu.address, gpu.function.vendor, gpu.function.product
            )
            if gpu.address in taken or rule.use not in _USES:
                continue
            if not gpu.mdevs and diagnostics.is_reserved_for_host(
                gpu.function, rule
            ):
                yield diagnostics.describe_boot_display(gpu.function, rule)
                continue
            yield from gpu.find_unnamed_types()
            nvidia_card = gpu.build_card(rule, card)
            if nvidia_card.offers or nvidia_card.partitions:
                yield from diagnostics.find_untyped_vfs(nvidia_card, card)
                yield from diagnostics.describe(nvidia_card)
            elif gpu.usable_parents():
                yield model.Problem.of_device(
                    gpu.address,
                    "is an mdev parent without vGPU types: see the"
                    " kernel's log for NVRM messages, and whether nvidia's"
                    " vGPU services run",
                )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that create the claim's mdev."""
        create = actions.CreateMdev(
            parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
        )
        return tuple(plans.plan_prepare(claim, create))

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that remove the claim's mdev."""
        remove = actions.RemoveMdev(
            parent=claim.parent, type_id=claim.type_id, uuid=claim.handle
        )
        return tuple(plans.plan_release(claim, remove))

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the actions that put cards into the mode policy asks for.

        :raises UnreadableError: mdev parents or mdevs can't be listed.
        """
        return tuple(
            itertools.chain.from_iterable(
                plans.plan_arrange(
                    host, rules, gpu.function, is_empty=not gpu.mdevs
                )
                for gpu in _read_gpus(host)
            )
        )


def list_card_addresses(host: host_reader.HostReader) -> frozenset[str]:
    """Return the addresses of all cards with mdev parents."""
    return frozenset(mdev_parents.group_by_device(host.mdev_parents()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MdevGpu(mdev_parents.ParentGroup):
    """A card with its mdev parents and its mdevs."""

    function: pci.PciFunction
    table: vgpu_xml.VgpuConfig = _NO_CONFIG

    @property
    def address(self) -> str:
        return str(self.function.address)

    def find_unnamed_types(self) -> Iterator[model.Problem]:
        for parent in self.parents:
            for mdev_type in parent.types:
                if (
                    not mdev_type.label
                    and mdev_type.type_id not in self.labels
                ):
                    yield model.Problem(
                        where=f"{parent.name} {mdev_type.type_id}",
                        reason="has no name, and NVIDIA's type numbers"
                        " change with the driver; not offered",
                        address=parent.name,
                    )

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        """Return the types' names by id, from any parent of the card.

        Names that no parent has come from the table, which merges other
        cards, NVML and vgpuConfig.xml.
        """
        used = {
            mdev_type.type_id
            for parent in self.parents
            for mdev_type in parent.types
        }
        used |= {mdev.type_id for mdev in self.mdevs}
        written = {
            type_id: self.table.names[number]
            for type_id in used
            if (number := _parse_type_number(type_id)) in self.table.names
        }
        return written | {
            mdev_type.type_id: mdev_names.strip_brand(mdev_type.label)
            for parent in self.parents
            for mdev_type in parent.types
            if mdev_type.label
        }

    def build_card(
        self, rule: policy.Rule, host: host_reader.HostReader
    ) -> gpu_card.NvidiaCard:
        usable = self.usable_parents()
        offers = tuple(self._list_offers(usable))
        return gpu_card.NvidiaCard(
            function=self.function,
            plugin=NvidiaMdevDriver.name,
            technology="mdev",
            rule=rule,
            nvml=gpu_card.get_nvml_gpu(host, self.address),
            driver_version=host.module_version(gpu_card.MODULE),
            offers=offers,
            partitions=tuple(self._list_partitions()),
            slots=self._list_slots(offers, host),
            on_vfs=self.on_vfs,
        )

    def _list_offers(
        self, usable: mdev_parents.Parents
    ) -> Iterator[type_sources.OfferedType]:
        labels = self.labels
        mdev_types: dict[str, dict[str, host_reader.MdevType]] = {}
        for parent in usable:
            for mdev_type in parent.types:
                label = labels.get(mdev_type.type_id)
                if not label:
                    continue
                same = mdev_types.setdefault(label, {})
                other = same.get(parent.name)
                if other is None or (other.available or 0) < (
                    mdev_type.available or 0
                ):
                    same[parent.name] = mdev_type
        for name, by_parent in mdev_types.items():
            number = _parse_type_number(next(iter(by_parent.values())).type_id)
            yield dataclasses.replace(
                _build_offer(
                    name,
                    by_parent,
                    ready=self._count_ready(by_parent),
                ),
                xml=self.table.facts(number, self.function),
            )

    def _count_ready(
        self, mdev_types: Mapping[str, host_reader.MdevType]
    ) -> int:
        """Return how many more mdevs of a type the parents can create.

        A VF can create one mdev, and its available number ignores the other
        VFs. So VFs that can create one are counted, not summed up.
        """
        if not self.on_vfs:
            return sum([t.available or 0 for t in mdev_types.values()])
        occupied = self.occupied
        return sum(
            bool(mdev_type.available) and parent not in occupied
            for parent, mdev_type in mdev_types.items()
        )

    def _list_partitions(self) -> Iterator[model.Partition]:
        labels = self.labels
        for mdev in self.mdevs:
            yield model.Partition(
                profile=labels.get(mdev.type_id, mdev.type_id)
                or model.UNKNOWN,
                parent=mdev.parent,
                handle=mdev.uuid,
                is_nameless=bool(mdev.type_id) and mdev.type_id not in labels,
            )

    def _list_slots(
        self,
        offers: tuple[type_sources.OfferedType, ...],
        host: host_reader.HostReader,
    ) -> tuple[str, ...]:
        """Return the identifiers of all slots the card can have.

        They do not depend on existing mdevs, or the slot of a server could
        disappear. They are the addresses of VFs, else as many names as the
        largest limit of a type.
        """
        if self.on_vfs:
            return self._list_vf_slots(host)
        nvml_types = gpu_card.map_nvml_types(
            gpu_card.get_nvml_gpu(host, self.address)
        )
        limits = [
            type_sources.merge(o, nvml_types.get(o.name)).limit for o in offers
        ]
        count = max(
            (n or gpu_card.MAX_TIME_SLICED for n in limits),
            default=gpu_card.MAX_TIME_SLICED,
        )
        return names.slot_names(max(count, len(self.mdevs)))

    def _list_vf_slots(self, host: host_reader.HostReader) -> tuple[str, ...]:
        """Return VFs that are not bound to VFIO, also unreadable VFs."""
        occupied = self.occupied
        addresses = dict.fromkeys(map(str, self.function.virtual_functions))
        addresses |= dict.fromkeys(p.name for p in self.parents if p.physfn)
        return tuple(
            sorted(
                (
                    name
                    for name in addresses
                    if name in occupied
                    or not mdev_parents.is_vfio_bound(host.function(name))
                ),
                key=pci.parse_address,
            )
        )


def _read_gpus(host: host_reader.HostReader) -> Iterator[_MdevGpu]:
    """Yield NVIDIA cards with mdev parents, in the order of addresses."""
    groups = mdev_parents.group_by_device(host.mdev_parents())
    for address, parents in groups.items():
        function = host.function(address)
        if function is None or function.vendor != gpu_card.VENDOR_ID:
            continue  # missing, of another vendor, or unreadable
        addresses = {address, *(p.name for p in parents)}
        addresses |= set(map(str, function.virtual_functions))
        yield _MdevGpu(
            function=function,
            parents=parents,
            mdevs=tuple(m for m in host.mdevs() if m.parent in addresses),
        )


def _read_host_labels(host: host_reader.HostReader) -> dict[str, str]:
    """Return the type names of all parents of a host, by number."""
    return _read_label_names(_read_gpus(host))


def _read_label_names(gpus: Iterable[_MdevGpu]) -> dict[str, str]:
    """Return the type names of the parents of GPUs, by number."""
    return {
        _parse_type_number(type_id): name
        for gpu in gpus
        for type_id, name in gpu.labels.items()
    }


def _parse_type_number(type_id: str) -> str:
    """Return the driver's number of a type: 222 of ``nvidia-222``."""
    return type_id.rpartition("-")[2]


def _build_offer(
    name: str, mdev_types: Mapping[str, host_reader.MdevType], *, ready: int
) -> type_sources.OfferedType:
    """Return a type with the data of all its parents."""
    descriptions = [
        mdev_names.parse_description(mdev_type.description)
        for mdev_type in mdev_types.values()
    ]
    api = mdev_parents.find_device_api(mdev_types.values())
    return type_sources.OfferedType(
        name=name,
        ready=ready,
        handles={
            parent: mdev_type.type_id
            for parent, mdev_type in mdev_types.items()
        },
        device_api=api,
        kernel=mdev_names.TypeDescription(
            memory_mb=mdev_parents.max_or_none(
                [d.memory_mb for d in descriptions]
            ),
            max_instances=mdev_parents.max_or_none(
                [d.max_instances for d in descriptions]
            ),
        ),
        gap="" if api else _NO_API,
    )
