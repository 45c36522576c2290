# SPDX-License-Identifier: Apache-2.0
"""Driver of whole PCI functions.

libvirt detaches and reattaches them (``managed='yes'``), so nothing has to
be made. What may be given away is decided by IOMMU groups, and by what the
host itself does with a function: shows its console on it, keeps its data.
"""

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence

from nova_accel import model
from nova_accel.catalog import loader, pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import host_use, iommu_group

# Multimedia (PCI Code and ID Assignment Specification).
_SOUND = 0x04
_MEND = "unbind it, or put the card in a slot of its own"


class PciPassthroughDriver:
    """Describes functions that can be given to guests whole."""

    name = "pci_passthrough"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each card, or the reason against it.

        Without a device_spec line these are GPUs, and devices of known
        kinds that keep no data, that no driver of the host holds; with
        ``use`` ``passthrough``, whatever the line names by address or
        ids, and GPUs where it names nothing.

        :raises UnreadableError: the PCI bus or the mdevs can't be listed.
        """
        parents = frozenset(m.parent for m in host.mdevs())
        for unit in _units(host.functions(), rules):
            wanted = [f for f in unit if _is_wanted(f, rules)]
            if not wanted or _is_touched(unit, taken):
                continue
            gpus = (f for f in wanted if pci_ids.is_gpu(f))
            first = next(gpus, wanted[0])
            parts = tuple(
                f for f in unit if f in wanted or _slot(f) == _slot(first)
            )
            if any(iommu_group.is_stray_vf(f, host) for f in parts):
                reason = (
                    "it is a virtual function without its physical one,"
                    " half made or half removed; enable them again"
                )
            elif any(_is_off(f, rules) for f in parts):
                off = next(f for f in parts if _is_off(f, rules))
                reason = (
                    f"{off.address} goes to a guest with it, and device_spec"
                    " says use off for that; say use off for both, or for"
                    " neither"
                )
            elif _is_touched(parts, parents):
                reason = "mdevs exist on it; remove them first"
            else:
                reason = _held(first, wanted, parts) or _objection(
                    first, parts, host
                )
            if reason:
                yield model.Problem(
                    where=str(first.address),
                    reason=f"is not passed through: {reason}",
                )
            else:
                yield _device(first, parts, host)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt detaches the functions itself."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt gives the functions back itself."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action: a whole function has no mode."""
        return ()


def _units(
    functions: Iterable[pci.PciFunction], rules: policy.Policy
) -> Iterator[tuple[pci.PciFunction, ...]]:
    """Yield functions that may have to be given away together.

    The functions of one card in one IOMMU group, and of all cards with
    GPUs that share a group; VFs and bridges belong to no unit.
    """
    found: dict[object, list[pci.PciFunction]] = collections.defaultdict(list)
    for function in functions:
        if not function.is_bridge and function.physfn is None:
            found[_slot(function)].append(function)
    shared: dict[int, object] = {}
    for slot, members in list(found.items()):
        number = members[0].iommu_group
        if number is None or not any(
            pci_ids.is_gpu(f) or _is_wanted(f, rules) for f in members
        ):
            continue
        first = shared.setdefault(number, slot)
        if first != slot:
            found[first] += found.pop(slot)
    for members in found.values():
        yield tuple(members)


def _slot(function: pci.PciFunction) -> object:
    address = function.address
    return (
        address.domain,
        address.bus,
        address.slot,
        function.iommu_group,
    )


def _is_wanted(function: pci.PciFunction, rules: policy.Policy) -> bool:
    """Return whether policy, or the default, would offer a function."""
    rule = rules.rule(str(function.address), function.vendor, function.product)
    if rule.use is policy.DeviceUse.PASSTHROUGH:
        return rule.is_specific or pci_ids.is_gpu(function)
    return (
        rule.use is policy.DeviceUse.AUTO
        and _is_known(function)
        and (function.driver is None or function.is_vfio_bound)
        and not function.boot_vga
        and function.num_vfs == 0
        and not function.virtual_functions
    )


def _is_known(function: pci.PciFunction) -> bool:
    """Return whether a free function is offered without being named."""
    kind = pci_ids.find(function)
    return pci_ids.is_gpu(function) or (
        kind is not None and not kind.keeps_data
    )


def _is_off(function: pci.PciFunction, rules: policy.Policy) -> bool:
    rule = rules.rule(str(function.address), function.vendor, function.product)
    return rule.use is policy.DeviceUse.OFF


def _is_touched(
    unit: tuple[pci.PciFunction, ...], used: frozenset[str]
) -> bool:
    """Return whether partitions are, or may be, cut from a unit."""
    parts = [
        address
        for function in unit
        for address in (function.address, *function.virtual_functions)
    ]
    return any(str(address) in used for address in parts)


def _held(
    first: pci.PciFunction,
    wanted: Collection[pci.PciFunction],
    unit: Iterable[pci.PciFunction],
) -> str:
    """Return which part of a card the host's drivers keep, or nothing.

    The sound and the USB port of a GPU go with it; what else is in its
    slot, or on the card of another device, may be the host's network.
    """
    is_gpu = pci_ids.is_gpu(first)
    other = next(
        (
            f
            for f in unit
            if f not in wanted
            and not iommu_group.is_free(f)
            and not (is_gpu and _goes_along(f, first))
        ),
        None,
    )
    if other is None:
        return ""
    return (
        f"{other.address} on the same card is in use by the host's driver"
        f" {other.driver}; unbind it, or name it in device_spec as well"
    )


def _goes_along(function: pci.PciFunction, gpu: pci.PciFunction) -> bool:
    """Return whether a GPU's slot has a function for that GPU only.

    Its sound, and its maker's USB port. In the slot of an AMD processor's
    own GPU (1002) are the platform's USB and security (1022).
    """
    return function.base_class == _SOUND or function.vendor == gpu.vendor


def _objection(
    first: pci.PciFunction,
    unit: tuple[pci.PciFunction, ...],
    host: host_reader.HostReader,
) -> str:
    """Return why a unit can't be given to a guest, empty if it can."""
    if any(f.boot_vga for f in unit):
        return (
            "it is the host's boot display; let the firmware use another one"
        )
    busy = next((f for f in unit if f.num_vfs), None)
    if busy is not None:
        return (
            f"{busy.num_vfs} virtual functions of"
            f" {busy.address} are enabled; write 0 to its sriov_numvfs first"
        )
    together = tuple(f.address for f in unit)
    for reason in (
        *(iommu_group.console_objection(f, host) for f in unit),
        iommu_group.objection(first, together, host, _MEND),
        *(iommu_group.reset_objection(f, host) for f in unit),
        *(host_use.objection(f, host) for f in unit),
    ):
        if reason:
            return reason
    return ""


def _device(
    first: pci.PciFunction,
    unit: tuple[pci.PciFunction, ...],
    host: host_reader.HostReader,
) -> model.Device:
    address = str(first.address)
    ids = f"{first.vendor}:{first.product}"
    resource_class, trait = _class_and_trait(first)
    title, traits = _identity(first)
    profile = model.Profile(
        name=ids, trait=trait, charges={resource_class: 1}, available=1
    )
    return model.Device(
        address=address,
        plugin=PciPassthroughDriver.name,
        technology="passthrough",
        vendor=names.vendor_name(first.vendor),
        model=title or ids,
        resource_class=resource_class,
        counters={resource_class: 1},
        slots=(address,),
        vendor_id=first.vendor,
        product_id=first.product,
        driver=first.driver,
        numa_node=first.numa_node,
        profiles=(profile,),
        traits=traits,
        members=tuple(
            str(address)
            for address in sorted(f.address for f in unit)
            if address != first.address
        ),
        is_managed=not iommu_group.keeps_driver(unit),
        fault=host_use.fault(first, host),
    )


def _class_and_trait(function: pci.PciFunction) -> tuple[str, str]:
    """Return the class that a function is counted in, and its trait."""
    ids = (function.vendor, function.product)
    if pci_ids.is_gpu(function):
        return names.WHOLE_GPU_CLASS, names.custom("GPU_PCI", *ids)
    kind = pci_ids.find(function)
    resource_class = kind.whole_class if kind else names.custom("PCI", *ids)
    return resource_class, names.custom("ACCELERATOR_PCI", *ids)


def _identity(function: pci.PciFunction) -> tuple[str, frozenset[str]]:
    """Return the name of a function's model, empty if unknown, and traits."""
    traits = names.identity_traits(
        function.vendor, function.product, function.numa_node
    )
    facts = loader.load().of_card(
        (),
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )
    title = facts.key if facts else pci_ids.find_model(function)
    if facts is not None:
        traits |= facts.traits
    if title:
        traits |= {names.model_trait(function.vendor, title)}
    return title, traits
