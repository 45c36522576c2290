# SPDX-License-Identifier: Apache-2.0
"""Driver of whole PCI functions (passthrough).

libvirt detaches and reattaches the functions (``managed='yes'``), so the
driver plans no action. A function is offered if its IOMMU group can go to
a guest and the host does not use it, for its console or its data.

A *unit* is the set of functions that may have to go to one guest; see
``_list_units``.
"""

import collections
from collections.abc import Collection, Iterable, Iterator

from nova_accel import model
from nova_accel.catalog import loader, pci_ids
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader, modules
from nova_accel.model import names, pci
from nova_accel.vendors.common import (
    driver_base,
    equal_functions,
    host_use,
    iommu_group,
    reset_policy,
)

# Multimedia (PCI Code and ID Assignment Specification).
_SOUND = 0x04


class PciPassthroughDriver(driver_base.DriverBase):
    """Describes functions that can be assigned to guests whole."""

    name = "pci_passthrough"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device, or one problem, for each unit of the card.

        Without a device_spec line, free GPUs are offered, and free devices
        of known kinds that store no data. With ``use`` ``passthrough``,
        functions that the line names by address or ids are offered, and
        GPUs if it names neither.

        :raises UnreadableError: the PCI bus or the mdevs can't be listed.
        """
        mdev_parents = frozenset(mdev.parent for mdev in card.mdevs())
        for unit in _list_units(card.functions(), rules):
            functions = _list_assigned(unit, rules)
            if not functions or _has_any_address(unit, taken):
                continue
            main = functions[0]
            requested = [f for f in functions if _is_requested(f, rules)]
            difference = _describe_difference(main, rules, card, taken)
            reason = (
                _check_stray_vf(functions, card)
                or _check_difference(difference, functions, rules, card)
                or _check_policy(functions, rules)
                or _check_mdevs(functions, mdev_parents)
                or _check_drivers(main, requested, functions)
                or _check_boot_display(functions, rules)
                or _check_switch(main)
                or _check_assignable(main, functions, card)
                or reset_policy.check_whole(functions, card, rules)
            )
            if reason:
                yield model.Problem.of_device(
                    main.address, f"is not passed through: {reason}"
                )
                continue
            yield _build_device(main, functions, card)
            if difference:
                yield model.Problem.of_device(
                    main.address,
                    f"is offered only to the server that has it: {difference}",
                )
            if reason := _check_coherent_memory(main, card):
                yield model.Problem.of_device(main.address, reason)


def list_assigned(
    host: host_reader.HostReader, rules: policy.DeviceRules
) -> Iterator[tuple[pci.PciFunction, ...]]:
    """Yield the functions that go to one guest, the assigned one first.

    They are those that policy or the default asks to offer, whatever else
    keeps them from guests.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for unit in _list_units(host.functions(), rules):
        if functions := _list_assigned(unit, rules):
            yield functions


def _list_assigned(
    unit: tuple[pci.PciFunction, ...], rules: policy.DeviceRules
) -> tuple[pci.PciFunction, ...]:
    requested = [f for f in unit if _is_requested(f, rules)]
    if not requested:
        return ()
    gpus = (f for f in requested if pci_ids.is_gpu(f))
    main = next(gpus, requested[0])
    return (
        main,
        *(
            f
            for f in unit
            if f != main
            and (f in requested or _slot_key(f) == _slot_key(main))
        ),
    )


def _list_units(
    functions: Iterable[pci.PciFunction], rules: policy.DeviceRules
) -> Iterator[tuple[pci.PciFunction, ...]]:
    """Yield units: functions that may have to go to one guest together.

    A unit has the functions of one PCI slot in one IOMMU group. Slots with
    GPUs or requested functions that share an IOMMU group are one unit. VFs
    and bridges belong to no unit.
    """
    units: dict[object, list[pci.PciFunction]] = collections.defaultdict(list)
    for function in functions:
        if not function.is_bridge and function.physfn is None:
            units[_slot_key(function)].append(function)
    first_slots: dict[int, object] = {}
    for slot, members in list(units.items()):
        group = members[0].iommu_group
        if group is None or not any(
            pci_ids.is_gpu(f) or _is_requested(f, rules) for f in members
        ):
            continue
        first = first_slots.setdefault(group, slot)
        if first != slot:
            units[first] += units.pop(slot)
    for members in units.values():
        yield tuple(members)


def _slot_key(function: pci.PciFunction) -> object:
    address = function.address
    return (
        address.domain,
        address.bus,
        address.slot,
        function.iommu_group,
    )


def _is_requested(
    function: pci.PciFunction, rules: policy.DeviceRules
) -> bool:
    """Return whether policy or the default asks to offer a function."""
    rule = rules.rule(str(function.address), function.vendor, function.product)
    if rule.use is policy.DeviceUse.PASSTHROUGH:
        return rule.is_specific or pci_ids.is_gpu(function)
    return (
        rule.use is policy.DeviceUse.AUTO
        and _is_offered_by_default(function)
        and (function.driver is None or function.is_vfio_bound)
        and not function.boot_vga
        and function.num_vfs == 0
        and not function.virtual_functions
    )


def _is_offered_by_default(function: pci.PciFunction) -> bool:
    """Return whether a free function is offered without a policy line."""
    kind = pci_ids.find(function)
    return pci_ids.is_gpu(function) or (
        kind is not None and not kind.keeps_data
    )


def _is_off(function: pci.PciFunction, rules: policy.DeviceRules) -> bool:
    rule = rules.rule(str(function.address), function.vendor, function.product)
    return rule.use is policy.DeviceUse.OFF


def _has_any_address(
    functions: tuple[pci.PciFunction, ...], addresses: frozenset[str]
) -> bool:
    """Return whether the addresses name one of the functions or their VFs."""
    return any(
        str(address) in addresses
        for function in functions
        for address in (function.address, *function.virtual_functions)
    )


def _check_stray_vf(
    functions: tuple[pci.PciFunction, ...], host: host_reader.HostReader
) -> str:
    if any(iommu_group.is_stray_vf(f, host) for f in functions):
        return (
            "it is a virtual function without its physical one,"
            " half made or half removed; enable them again"
        )
    return ""


def _check_difference(
    difference: str,
    functions: tuple[pci.PciFunction, ...],
    rules: policy.DeviceRules,
    host: host_reader.HostReader,
) -> str:
    """Return a card's difference from its equals with remedies, or "".

    That such a card is free is no sign that it is for guests as a whole: the
    probe of its driver has failed, or another program has bound it. A server
    that has it keeps it.
    """
    addresses = {str(function.address) for function in functions}
    if not difference or not rules.assigned.isdisjoint(addresses):
        return ""
    main = functions[0]
    obstacle = _check_assignable(
        main, functions, host
    ) or reset_policy.check_whole(functions, host, rules)
    rule = rules.rule(str(main.address), main.vendor, main.product)
    line = rule.amend(
        str(main.address), use=policy.DeviceUse.PASSTHROUGH.value
    )
    whole = f"correct that {obstacle}" if obstacle else f"write {line}"
    return f"{difference}, or, to give it to guests whole, {whole}"


def _describe_difference(
    main: pci.PciFunction,
    rules: policy.DeviceRules,
    host: host_reader.HostReader,
    taken: frozenset[str],
) -> str:
    """Return how a card's driver differs from that of its equals, or "".

    Policy does not name the use of the card. An equal that the host's driver
    has counts if the card has none; if VFIO has the card, one that guests
    share counts.
    """
    rule = rules.rule(str(main.address), main.vendor, main.product)
    if rule.use is not policy.DeviceUse.AUTO:
        return ""
    equals = equal_functions.list_bound(main, host)
    if main.driver is not None:
        equals = (e for e in equals if _has_any_address((e,), taken))
    equal = next(equals, None)
    if equal is None:
        return ""
    binding = remedy.BindFunction(
        function=str(main.address), driver=equal.driver or ""
    )
    if main.driver is None:
        return (
            f"no driver has it, unlike {equal.address}, which {equal.driver}"
            f" has: its probe may have failed, see the kernel's log; {binding}"
        )
    return (
        f"it is bound to {main.driver}, unlike {equal.address}, which"
        f" {equal.driver} has and guests share; {binding}"
    )


def _check_policy(
    functions: tuple[pci.PciFunction, ...], rules: policy.DeviceRules
) -> str:
    for function in functions:
        if _is_off(function, rules):
            return (
                f"{function.address} goes to a guest with it, and device_spec"
                ' has "use": "off" for that; write it for both, or for'
                " neither"
            )
    return ""


def _check_mdevs(
    functions: tuple[pci.PciFunction, ...], mdev_parents: frozenset[str]
) -> str:
    if _has_any_address(functions, mdev_parents):
        return "mdevs exist on it; remove them first"
    return ""


def _check_drivers(
    main: pci.PciFunction,
    requested: Collection[pci.PciFunction],
    functions: Iterable[pci.PciFunction],
) -> str:
    """Return which unrequested function a host driver is bound to, or "".

    The audio and USB functions of a GPU go to the guest with it. Other
    functions in the slot or the group may be the host's network.
    """
    is_gpu = pci_ids.is_gpu(main)
    other = next(
        (
            f
            for f in functions
            if f not in requested
            and not iommu_group.is_free(f)
            and not (is_gpu and _is_companion(f, main))
        ),
        None,
    )
    if other is None:
        return ""
    step = remedy.BindFunction(function=str(other.address), driver="vfio-pci")
    return (
        f"{other.address} on the same card is in use by the host's driver"
        f" {other.driver}; {step}"
    )


def _is_companion(function: pci.PciFunction, gpu: pci.PciFunction) -> bool:
    """Return whether a function in a GPU's slot belongs to that GPU.

    True for audio functions and for functions of the GPU's vendor. The
    slot of an AMD processor's GPU (1002) also has USB and security
    functions of the platform (1022), which do not belong to the GPU.
    """
    return function.base_class == _SOUND or function.vendor == gpu.vendor


def _check_boot_display(
    functions: tuple[pci.PciFunction, ...], rules: policy.DeviceRules
) -> str:
    """Return that the host's console may be on a GPU, or "".

    An operator who binds it to VFIO and names it by address or ids wants to
    do without.
    """
    display = next((f for f in functions if f.boot_vga), None)
    if display is None:
        return ""
    rule = rules.rule(str(display.address), display.vendor, display.product)
    if display.is_vfio_bound and rule.is_specific:
        return ""
    return (
        "it is the host's boot display; let the firmware use another one, or"
        " bind it to vfio-pci and name its address or ids in device_spec"
    )


def _check_switch(main: pci.PciFunction) -> str:
    """Return that the host manages a switch of GPUs, or ""."""
    if not pci_ids.is_nvswitch(main) or main.is_vfio_bound:
        return ""
    return (
        "it is an NVSwitch, which the Fabric Manager of this host may use; to"
        " give all GPUs and NVSwitches to one server, bind all to vfio-pci"
    )


def _check_coherent_memory(
    main: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that a guest would not see all memory of a GPU, or ""."""
    driver = pci_ids.COHERENT_DRIVER
    if (
        not main.is_vfio_bound
        or main.driver == driver
        or not pci_ids.has_coherent_memory(main.vendor, main.product, None)
    ):
        return ""
    steps = [
        str(remedy.BindFunction(function=str(main.address), driver=driver))
    ]
    if not modules.has_driver(host.files, driver):
        steps.insert(0, str(remedy.LoadModule(module=driver)))
    return (
        f"has {main.driver}, by which a guest does not see the memory that is"
        f" coherent with the CPU's; unless a guest has it,"
        f" {', then '.join(steps)}"
    )


def _check_assignable(
    main: pci.PciFunction,
    functions: tuple[pci.PciFunction, ...],
    host: host_reader.HostReader,
) -> str:
    """Return why the functions can't be assigned to a guest, or ""."""
    pf = next((f for f in functions if f.num_vfs), None)
    if pf is not None:
        return (
            f"{pf.num_vfs} virtual functions of {pf.address} are enabled;"
            f" {_disable_vfs(pf)} first"
        )
    addresses = tuple(f.address for f in functions)
    for reason in (
        *(iommu_group.check_console(f, host) for f in functions),
        iommu_group.check_group(main, addresses, host),
        *(host_use.check_use(f, host) for f in functions),
    ):
        if reason:
            return reason
    return ""


def _disable_vfs(pf: pci.PciFunction) -> remedy.WriteAttribute:
    return remedy.WriteAttribute(
        function=str(pf.address), name="sriov_numvfs", value="0"
    )


def _build_device(
    main: pci.PciFunction,
    functions: tuple[pci.PciFunction, ...],
    host: host_reader.HostReader,
) -> model.Device:
    address = str(main.address)
    ids = f"{main.vendor}:{main.product}"
    resource_class, trait = _get_class_and_trait(main)
    model_name, traits = _get_model_and_traits(main)
    profile = model.Profile(
        name=ids, trait=trait, charges={resource_class: 1}, available=1
    )
    return model.Device(
        address=address,
        plugin=PciPassthroughDriver.name,
        technology="passthrough",
        vendor=names.vendor_name(main.vendor),
        model=model_name or ids,
        resource_class=resource_class,
        counters={resource_class: 1},
        slots=(address,),
        vendor_id=main.vendor,
        product_id=main.product,
        driver=main.driver,
        numa_node=main.numa_node,
        profiles=(profile,),
        traits=traits,
        members=tuple(
            str(address)
            for address in sorted(f.address for f in functions)
            if address != main.address
        ),
        is_managed=not iommu_group.has_variant_driver(functions),
        fault=host_use.read_fault(main, host),
    )


def _get_class_and_trait(function: pci.PciFunction) -> tuple[str, str]:
    """Return the resource class and the profile trait of a function."""
    ids = (function.vendor, function.product)
    if pci_ids.is_gpu(function):
        return names.WHOLE_GPU_CLASS, names.custom_name("GPU_PCI", *ids)
    kind = pci_ids.find(function)
    resource_class = (
        kind.whole_class if kind else names.custom_name("PCI", *ids)
    )
    return resource_class, names.custom_name("ACCELERATOR_PCI", *ids)


def _get_model_and_traits(
    function: pci.PciFunction,
) -> tuple[str, frozenset[str]]:
    """Return a function's model name, empty if unknown, and its traits."""
    traits = names.identity_traits(
        function.vendor, function.product, function.numa_node
    )
    gpu = loader.load().of_card(
        (),
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )
    model_name = gpu.key if gpu else pci_ids.find_model(function)
    if gpu is not None:
        traits |= gpu.traits
    if model_name:
        traits |= {names.model_trait(function.vendor, model_name)}
    return model_name, traits
