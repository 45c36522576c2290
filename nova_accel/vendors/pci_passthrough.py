# SPDX-License-Identifier: Apache-2.0
"""Whole PCI functions, given to a guest as they are.

libvirt detaches and reattaches them (``managed='yes'``), so nothing has to
be made. What may be given away is decided by IOMMU groups, and by what the
host itself shows its console on.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence

from nova_accel import actions, model, names, pci, policy
from nova_accel.host import known, sysfs
from nova_accel.vendors import group

_MEND = "unbind it, or put the card in a slot of its own"


class PciPassthroughDriver:
    """Describes functions that can be given to guests whole."""

    name = "pci_passthrough"

    def describe(
        self,
        host: sysfs.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each card, or the reason against it.

        Without a device_spec line these are GPUs that no driver of the
        host holds; with ``use`` ``passthrough``, whatever the line names
        by address or ids, and GPUs where it names nothing.

        :raises UnreadableError: the PCI bus or the mdevs can't be listed.
        """
        parents = frozenset(m.parent for m in host.mdevs())
        for unit in _units(host.functions()):
            wanted = [f for f in unit if _is_wanted(f, rules)]
            if not wanted or _is_touched(unit, taken):
                continue
            first = next((f for f in wanted if group.is_gpu(f)), wanted[0])
            parts = tuple(
                f for f in unit if f in wanted or _slot(f) == _slot(first)
            )
            if any(group.is_stray_vf(f, host) for f in parts):
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
                reason = _objection(first, parts, host)
            if reason:
                yield model.Problem(
                    where=str(first.address),
                    reason=f"is not passed through: {reason}",
                )
            else:
                yield _device(first, parts)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt detaches the functions itself."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt gives the functions back itself."""
        return ()

    def plan_arrange(
        self, host: sysfs.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action: a whole function has no mode."""
        return ()


def _units(
    functions: Iterable[pci.PciFunction],
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
        if number is None or not any(map(group.is_gpu, members)):
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
    if rule.use is policy.Use.PASSTHROUGH:
        pointed = (rule.address, rule.vendor_id, rule.product_id) != (
            "*",
            "*",
            "*",
        )
        return pointed or group.is_gpu(function)
    return (
        rule.use is policy.Use.AUTO
        and group.is_gpu(function)
        and (function.driver is None or function.is_vfio_bound)
        and not function.boot_vga
        and function.num_vfs == 0
        and not function.virtual_functions
    )


def _is_off(function: pci.PciFunction, rules: policy.Policy) -> bool:
    rule = rules.rule(str(function.address), function.vendor, function.product)
    return rule.use is policy.Use.OFF


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


def _objection(
    first: pci.PciFunction,
    unit: tuple[pci.PciFunction, ...],
    host: sysfs.HostReader,
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
        *(group.console_objection(f, host) for f in unit),
        group.objection(first, together, host, _MEND),
        *(group.reset_objection(f, host) for f in unit),
    ):
        if reason:
            return reason
    return ""


def _device(
    first: pci.PciFunction, unit: tuple[pci.PciFunction, ...]
) -> model.Device:
    address = str(first.address)
    ids = f"{first.vendor}:{first.product}"
    if group.is_gpu(first):
        resource_class = names.WHOLE_GPU_CLASS
        trait = names.custom("GPU_PCI", first.vendor, first.product)
    else:
        resource_class = names.custom("PCI", first.vendor, first.product)
        trait = names.custom("ACCELERATOR_PCI", first.vendor, first.product)
    facts = known.load().of_card(
        (),
        first.vendor,
        first.product,
        first.subsystem_vendor,
        first.subsystem_product,
    )
    traits = names.identity_traits(
        first.vendor, first.product, first.numa_node
    )
    if facts is not None:
        traits |= facts.traits
        traits |= {names.model_trait(first.vendor, facts.key)}
    profile = model.Profile(
        name=ids, trait=trait, charges={resource_class: 1}, available=1
    )
    return model.Device(
        address=address,
        plugin=PciPassthroughDriver.name,
        technology="passthrough",
        vendor=names.vendor_name(first.vendor),
        model=facts.key if facts else ids,
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
    )
