# SPDX-License-Identifier: Apache-2.0
"""Driver of NVIDIA vGPUs that are typed VFs (vendor-specific VFIO).

The host's kernel and driver decide between mdevs and typed VFs, not the
generation of the card. The attributes of the VFs show which.
"""

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import loader, vgpu_xml
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader, vgpu_config
from nova_accel.model import actions, pci
from nova_accel.vendors.common import vf_card
from nova_accel.vendors.nvidia import (
    diagnostics,
    gpu_card,
    mdev_driver,
    missing_types,
    plans,
    type_sources,
    vf_files,
)

# Type names by id. The ids are valid for one release of NVIDIA's driver.
_Names = Mapping[str, str]
# Ids of a card's model: product, and vendor and product of the subsystem.
_Board = tuple[str, str, str]


class NvidiaVfioDriver:
    """Describes NVIDIA cards with typed VFs and plans their types.

    VFs list creatable types only, so the name of an existing type may be in
    no list. Other sources are NVML, then vgpuConfig.xml, then the names of
    earlier calls, which are cached while the same driver release is loaded.
    """

    name = "nvidia_vfio"

    def __init__(self) -> None:
        self._release = ""
        self._type_names: _Names = {}

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each GPU whose VFs have vGPU types.

        Cards that could have vGPUs but have no VFs are problems.

        :raises UnreadableError: the PCI bus or mdev parents can't be
            listed.
        """
        gpus = tuple(_read_cards(card))
        if gpus:
            yield from self._describe_gpus(gpus, card, rules, taken)
        yield from vf_card.find_vfs_without_pf(
            card, lambda function: function.vendor == gpu_card.VENDOR_ID
        )

    def _describe_gpus(
        self,
        gpus: tuple[vf_files.TypedVfCard, ...],
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        of_host, has_typed_vfs = card.once(_read_host)
        listed = _list_types_by_model(gpus)
        current_names = gpu_card.read_nvml_names(card)
        for types in (*of_host.values(), *listed.values()):
            current_names |= types
        table = vgpu_xml.VgpuConfig()
        if has_typed_vfs:
            table, problems = vgpu_config.read(card.files, current_names)
            yield from problems
        type_names = self._remember_names(
            card, {**table.names, **current_names}
        )
        for gpu in gpus:
            function = gpu.function
            rule = rules.rule(gpu.address, function.vendor, function.product)
            if gpu.address in taken or rule.use not in plans.USES:
                continue
            if not gpu.vfs:
                makes_vgpus = has_typed_vfs or card.once(_has_mdev_cards)
                yield from _list_untyped_problems(gpu, rule, card, makes_vgpus)
                continue
            if diagnostics.is_reserved_for_host(function, rule) and all(
                vf.is_free for vf in gpu.vfs
            ):
                yield diagnostics.describe_boot_display(function, rule)
                continue
            yield from gpu.problems
            yield from missing_types.describe_stray_vfs(function, card)
            model_types = frozenset(
                name
                for types in (of_host, listed)
                for name in types.get(_board_key(function), {}).values()
            )
            yield from diagnostics.describe(
                _build_card(gpu, rule, card, model_types, type_names, table)
            )

    def _remember_names(
        self, host: host_reader.HostReader, current: _Names
    ) -> _Names:
        """Return the current and the cached type names, and cache them."""
        release = host.module_version(gpu_card.MODULE)
        is_same = bool(release) and release == self._release
        cached = self._type_names if is_same else {}
        self._type_names = {**cached, **current}
        self._release = release
        return self._type_names

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that set the type of the claim's VF."""
        create = actions.SetVgpuType(
            function=claim.handle, type_id=claim.type_id
        )
        return tuple(plans.plan_prepare(claim, create))

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that clear the type of the claim's VF."""
        remove = actions.ClearVgpuType(
            function=claim.handle, type_id=claim.type_id
        )
        return tuple(plans.plan_release(claim, remove))

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the actions that put cards into the mode policy asks for.

        This driver also enables the VFs of cards without VFs, although
        they may turn out to be mdev parents.

        :raises UnreadableError: the PCI bus or mdev parents can't be
            listed.
        """
        return tuple(
            itertools.chain.from_iterable(
                plans.plan_arrange(
                    host,
                    rules,
                    card.function,
                    is_empty=all(vf.is_free for vf in card.vfs),
                )
                for card in _read_cards(host)
            )
        )


def _read_cards(
    host: host_reader.HostReader,
) -> Iterator[vf_files.TypedVfCard]:
    """Yield NVIDIA cards without mdev parents."""
    others = mdev_driver.list_card_addresses(host)
    for function in host.functions():
        if (
            function.vendor == gpu_card.VENDOR_ID
            and function.physfn is None
            and str(function.address) not in others
        ):
            yield vf_files.read_card(host, function)


def _read_host(
    host: host_reader.HostReader,
) -> tuple[dict[_Board, dict[str, str]], bool]:
    """Return the types of each model, and whether any card has typed VFs.

    The types are names by id, as the cards of a host list them.
    """
    gpus = tuple(_read_cards(host))
    return _list_types_by_model(gpus), any(gpu.vfs for gpu in gpus)


def _has_mdev_cards(host: host_reader.HostReader) -> bool:
    return bool(mdev_driver.list_card_addresses(host))


def _list_untyped_problems(
    card: vf_files.TypedVfCard,
    rule: policy.Rule,
    host: host_reader.HostReader,
    makes_vgpus: bool,
) -> Iterator[model.Problem]:
    """Yield why a card without typed VFs has no vGPUs.

    :param makes_vgpus: whether another card of the host has vGPU types.
    """
    function = card.function
    is_vgpu_card = gpu_card.find_catalog_gpu(function, ()) is not None
    reason = ""
    if vf_files.has_type(host, function):
        reason = (
            "is a VF of an unknown card: its link physfn is"
            " missing; enable the card's VFs anew"
        )
    elif function.driver == gpu_card.MODULE:
        reason = missing_types.explain(function, rule, host, makes_vgpus)
    elif function.num_vfs and is_vgpu_card:
        reason = _explain_pf_driver(function, rule)
    if reason:
        yield model.Problem.of_device(card.address, reason)


def _explain_pf_driver(function: pci.PciFunction, rule: policy.Rule) -> str:
    """Return that a PF with VFs lacks NVIDIA's driver, with the remedy."""
    address = str(function.address)
    steps = (
        remedy.WriteAttribute(
            function=address, name="sriov_numvfs", value="0"
        ),
        remedy.BindFunction(function=address, driver=gpu_card.MODULE),
        rule.amend(address, num_vfs=function.total_vfs),
    )
    return (
        "its virtual functions are not offered: they need the driver"
        f" {gpu_card.MODULE} on it, and it is bound to"
        f" {function.driver or 'no driver'}; {', then '.join(map(str, steps))}"
    )


def _list_types_by_model(
    cards: tuple[vf_files.TypedVfCard, ...],
) -> dict[_Board, dict[str, str]]:
    """Return the type names, by id, that cards of each model list now."""
    types: dict[_Board, dict[str, str]] = collections.defaultdict(dict)
    for card in cards:
        types[_board_key(card.function)] |= card.list_creatable()
    return types


def _board_key(function: pci.PciFunction) -> _Board:
    return (
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )


def _build_card(
    card: vf_files.TypedVfCard,
    rule: policy.Rule,
    host: host_reader.HostReader,
    model_types: frozenset[str],
    type_names: _Names,
    table: vgpu_xml.VgpuConfig,
) -> gpu_card.NvidiaCard:
    nvml = gpu_card.get_nvml_gpu(host, card.address)
    partitions = tuple(_list_partitions(card, type_names))
    existing = {p.profile for p in partitions} & set(type_names.values())
    listed = model_types | existing | gpu_card.map_nvml_types(nvml).keys()
    return gpu_card.NvidiaCard(
        function=card.function,
        plugin=NvidiaVfioDriver.name,
        technology="vendor-vfio",
        rule=rule,
        nvml=nvml,
        driver_version=host.module_version(gpu_card.MODULE),
        offers=tuple(_list_offers(card, listed, type_names, table)),
        partitions=partitions,
        slots=card.slots,
        on_vfs=True,
        # A VF with a vGPU stays bound to NVIDIA's driver: unbinding would
        # remove the vGPU.
        is_managed=False,
        is_blocked=not any(vf.has_group for vf in card.vfs),
    )


def _list_catalog_types(
    function: pci.PciFunction, listed: frozenset[str]
) -> frozenset[str]:
    """Return the types of the card in the catalog.

    VFs list only types that they can get now. If the catalog has none of
    the listed types, its entry is for another card and is ignored.
    """
    gpu = gpu_card.find_catalog_gpu(function, tuple(listed))
    if gpu is None:
        return frozenset()
    catalog_types = frozenset(
        vgpu_type.name for vgpu_type in loader.load().profiles_of(gpu.key)
    )
    return (
        catalog_types if not listed or catalog_types & listed else frozenset()
    )


def _list_offers(
    card: vf_files.TypedVfCard,
    listed: frozenset[str],
    type_names: _Names,
    table: vgpu_xml.VgpuConfig,
) -> Iterator[type_sources.OfferedType]:
    ids = {name: number for number, name in type_names.items()}
    ready = collections.Counter(
        name for vf in card.vfs for name in vf.available_types
    )
    addresses = [vf.address for vf in card.vfs if vf.current is not None]
    for name in sorted(listed | _list_catalog_types(card.function, listed)):
        parents = addresses if name in ids else ()
        yield type_sources.OfferedType(
            name=name,
            ready=ready[name],
            handles={parent: ids[name] for parent in parents},
            xml=table.facts(ids.get(name), card.function),
        )
    unnamed = {vf.current for vf in card.vfs if vf.current and not vf.is_free}
    for number in sorted(unnamed - type_names.keys()):
        yield type_sources.OfferedType(
            name=f"type-{number}", handles=dict.fromkeys(addresses, number)
        )


def _list_partitions(
    card: vf_files.TypedVfCard, type_names: _Names
) -> Iterator[model.Partition]:
    """Yield the vGPUs of VFs; an unreadable VF has an unknown one."""
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
