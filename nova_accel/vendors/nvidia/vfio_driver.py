# SPDX-License-Identifier: Apache-2.0
"""Driver of NVIDIA's vGPUs as typed VFs: vendor-specific VFIO.

Which of the two a card has is decided by the host's kernel and driver, not
by the card's generation: by what its VFs show.
"""

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import loader, vgpu_xml
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader, vgpu_config
from nova_accel.model import actions, pci
from nova_accel.vendors.common import vf_card
from nova_accel.vendors.nvidia import (
    diagnostics,
    gpu_card,
    mdev_driver,
    plans,
    type_sources,
    vf_files,
)

# The ids of one look at a host, which are its driver release's: name by id.
_Names = Mapping[str, str]


class NvidiaVfioDriver:
    """Describes NVIDIA's cards with typed VFs and plans their types.

    VFs list what they can make, so the name of a type that is made may be
    in no list of the host any more. NVML is believed next, then the table
    that the host driver ships, then what was told before: it is
    remembered as long as the same release of the driver is loaded.
    """

    name = "nvidia_vfio"

    def __init__(self) -> None:
        self._release = ""
        self._seen: _Names = {}

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each card whose VFs have vGPU types.

        Cards that could make vGPUs, but for VFs, are problems.

        :raises UnreadableError: the PCI bus or mdev parents can't be
            listed.
        """
        cards = tuple(_cards(host))
        told = _told_names(host, cards)
        table = vgpu_xml.VgpuConfig()
        if any(card.vfs for card in cards):
            table, problems = vgpu_config.read(host.files, told)
            yield from problems
        type_names = self._names(host, {**table.names, **told})
        for card in cards:
            rule = rules.rule(
                card.address, card.function.vendor, card.function.product
            )
            if card.address in taken or rule.use not in plans.USES:
                continue
            if not card.vfs:
                yield from _barren(card, rule, host)
                continue
            if diagnostics.is_left_alone(card.function, rule) and all(
                vf.is_free for vf in card.vfs
            ):
                yield diagnostics.left_alone(card.function)
                continue
            yield from card.problems
            yield from diagnostics.describe(
                _card(card, rule, host, _alike(card, cards), type_names, table)
            )
        yield from vf_card.orphans(
            host, lambda function: function.vendor == gpu_card.VENDOR_ID
        )

    def _names(self, host: host_reader.HostReader, now: _Names) -> _Names:
        """Return all types' names by id that anything tells, or has told."""
        release = host.module_version(gpu_card.MODULE)
        is_same = bool(release) and release == self._release
        before = self._seen if is_same else {}
        self._seen = {**before, **now}
        self._release = release
        return self._seen

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the typing of the claim's VF, and what it needs."""
        making = actions.SetVgpuType(
            function=claim.handle, type_id=claim.type_id
        )
        return tuple(plans.prepare(claim, making))

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the freeing of the claim's VF, and of what it needed."""
        unmaking = actions.ClearVgpuType(
            function=claim.handle, type_id=claim.type_id
        )
        return tuple(plans.release(claim, unmaking))

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return what brings cards into the mode that policy asks for.

        Cards without VFs are looked after here, whatever those will show
        once they are enabled.

        :raises UnreadableError: the PCI bus or mdev parents can't be
            listed.
        """
        return tuple(
            itertools.chain.from_iterable(
                plans.arrange(
                    host,
                    rules,
                    card.function,
                    is_empty=all(vf.is_free for vf in card.vfs),
                )
                for card in _cards(host)
            )
        )


def _cards(host: host_reader.HostReader) -> Iterator[vf_files.TypedVfCard]:
    """Yield NVIDIA's cards that make no mdevs."""
    others = mdev_driver.cards(host)
    for function in host.functions():
        if (
            function.vendor == gpu_card.VENDOR_ID
            and function.physfn is None
            and str(function.address) not in others
        ):
            yield vf_files.read(host, function)


def _barren(
    card: vf_files.TypedVfCard, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield why a card that could make vGPUs makes none."""
    function = card.function
    reason = ""
    if vf_files.has_type(host, function):
        reason = (
            "is a VF, and nothing tells of which card: its link physfn is"
            " missing; enable the card's VFs anew"
        )
    elif function.driver == gpu_card.MODULE and not card.given_away:
        reason = _lack(card, rule)
    if reason:
        yield model.Problem(where=card.address, reason=reason)


def _lack(card: vf_files.TypedVfCard, rule: policy.Rule) -> str:
    """Return what a card lacks for vGPUs, empty if it needs to make none."""
    function = card.function
    facts = gpu_card.model_of(function, ())
    is_known = facts is not None and facts.is_complete
    if not is_known and not function.total_vfs:
        return ""  # the host computes with it
    if not function.total_vfs or function.num_vfs:
        where = "its VFs have" if function.num_vfs else "it has"
        return (
            f"makes no vGPU: {where} no vGPU types; install NVIDIA's vGPU"
            " host driver, and see the kernel's log for NVRM messages"
        )
    mend = (
        "they will be when the service starts, as num_vfs asks"
        if rule.num_vfs
        else "give it num_vfs in a device_spec line"
    )
    return (
        f"makes no vGPU: none of its VFs is enabled; {mend}, or run"
        f" sriov-manage -e {card.address}"
    )


def _told_names(
    host: host_reader.HostReader, cards: tuple[vf_files.TypedVfCard, ...]
) -> _Names:
    """Return all types' names by id that anything on this host tells."""
    found = gpu_card.told_names(host)
    for card in cards:
        found |= card.creatable()
    return found


def _alike(
    card: vf_files.TypedVfCard, cards: tuple[vf_files.TypedVfCard, ...]
) -> frozenset[str]:
    """Return the types that cards of the same model list now."""
    return frozenset(
        name
        for other in cards
        if _board(other.function) == _board(card.function)
        for name in other.creatable().values()
    )


def _board(function: pci.PciFunction) -> tuple[str, str, str]:
    return (
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )


def _card(
    card: vf_files.TypedVfCard,
    rule: policy.Rule,
    host: host_reader.HostReader,
    alike: frozenset[str],
    type_names: _Names,
    table: vgpu_xml.VgpuConfig,
) -> gpu_card.NvidiaCard:
    told = gpu_card.told_of(host, card.address)
    partitions = tuple(_partitions(card, type_names))
    made = {p.profile for p in partitions} & set(type_names.values())
    shown = alike | made | gpu_card.told_types(told).keys()
    return gpu_card.NvidiaCard(
        function=card.function,
        plugin=NvidiaVfioDriver.name,
        technology="vendor-vfio",
        rule=rule,
        told=told,
        driver_version=host.module_version(gpu_card.MODULE),
        offers=tuple(_offers(card, shown, type_names, table)),
        partitions=partitions,
        slots=card.slots,
        on_vfs=True,
        # The host's driver keeps a VF that has a vGPU: bound to another
        # one, the vGPU would be gone.
        is_managed=False,
        is_barred=not any(vf.has_group for vf in card.vfs),
    )


def _listed(
    function: pci.PciFunction, shown: frozenset[str]
) -> frozenset[str]:
    """Return the types that the catalogue gives a card.

    A VF lists what it can make at this moment only. Where the card shows
    types and the catalogue knows none of them, it knows another card.
    """
    facts = gpu_card.model_of(function, tuple(shown))
    if facts is None:
        return frozenset()
    names = frozenset(one.name for one in loader.load().profiles_of(facts.key))
    return names if not shown or names & shown else frozenset()


def _offers(
    card: vf_files.TypedVfCard,
    shown: frozenset[str],
    type_names: _Names,
    table: vgpu_xml.VgpuConfig,
) -> Iterator[type_sources.OfferedType]:
    ids = {name: number for number, name in type_names.items()}
    ready = collections.Counter(
        name for vf in card.vfs for name in vf.makeable
    )
    telling = [vf.address for vf in card.vfs if vf.current is not None]
    for name in sorted(shown | _listed(card.function, shown)):
        places = telling if name in ids else ()
        yield type_sources.OfferedType(
            name=name,
            ready=ready[name],
            handles={place: ids[name] for place in places},
            written=table.facts(ids.get(name), card.function),
        )
    unnamed = {vf.current for vf in card.vfs if vf.current and not vf.is_free}
    for number in sorted(unnamed - type_names.keys()):
        yield type_sources.OfferedType(
            name=f"type-{number}", handles=dict.fromkeys(telling, number)
        )


def _partitions(
    card: vf_files.TypedVfCard, type_names: _Names
) -> Iterator[model.Partition]:
    """Yield what VFs hold; one that doesn't tell may hold anything."""
    for vf in card.vfs:
        if vf.is_free:
            continue
        name = type_names.get(vf.current or "")
        number = model.UNKNOWN
        if vf.current is not None:
            number = f"type-{vf.current}"
        yield model.Partition(
            profile=name or number,
            parent=vf.address,
            handle=vf.address,
            start=vf.start,
            instance=vf.instance,
            is_nameless=name is None,
        )
