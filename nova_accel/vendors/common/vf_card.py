# SPDX-License-Identifier: Apache-2.0
"""PFs whose VFs go to guests unchanged, described as one device each.

A VF needs no actions: the PF's driver assigned its memory and engines when
it enabled the VF, and libvirt binds it to VFIO and back. Kernel files do
not show which VFs guests have, so all usable VFs count as available;
allocations in Placement say which are taken.

The kernel accepts another number of VFs only while none are enabled, so each
change of the number first removes all VFs.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader, links
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import (
    equal_functions,
    iommu_group,
    reset_policy,
)

_VIRTFN = re.compile(r"virtfn(\d+)")
_MIB = 1 << 20
_FOR_GUESTS = "vfio-pci"
# Most addresses that a message lists.
_MAX_LISTED = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VfQuota:
    """Memory of a VF, as its PF's driver assigned it.

    ``memory_mb`` is None if it is not known. ``reason`` says why the VF
    can't be used, empty if it can.
    """

    memory_mb: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Reason why VFs can't be offered.

    ``driver`` is the host's driver that holds them, empty for none;
    ``reason`` is a further one, empty without.
    """

    reason: str
    driver: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VfCard:
    """A PF with VFs, as its vendor driver read it.

    ``drivers`` are kernel drivers that may be bound to a VF that no guest
    has. ``quotas`` lacks VFs whose quota is unknown. ``resource_class``
    counts the VFs, ``trait_prefix`` starts the traits of their profiles.
    ``model`` is empty to use the PCI ids. ``fault`` says why no VF can be
    used now, empty if they can.
    """

    function: pci.PciFunction
    plugin: str
    drivers: tuple[str, ...]
    quotas: Mapping[pci.PciAddress, VfQuota] = dataclasses.field(
        default_factory=dict
    )
    traits: frozenset[str] = frozenset()
    resource_class: str = names.GPU_CLASS
    trait_prefix: str = "GPU_VF"
    model: str = ""
    fault: str = ""

    @property
    def address(self) -> str:
        return str(self.function.address)


def find_pfs(
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    is_supported: Callable[[pci.PciFunction], bool],
) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
    """Yield the PFs whose VFs policy offers, each with its rule.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for function in host.functions():
        if function.physfn is not None or not is_supported(function):
            continue
        rule = rules.rule(
            str(function.address), function.vendor, function.product
        )
        if rule.use in (policy.DeviceUse.AUTO, policy.DeviceUse.VF):
            yield function, rule


def build_line(
    function: pci.PciFunction, rule: policy.Rule, count: int, use: str = ""
) -> str:
    """Return the device_spec line with a number of VFs, and its place.

    :param use: of the line; by default that of the rule.
    """
    if not use and rule.use is not policy.DeviceUse.AUTO:
        use = rule.use.value
    uses = {"use": use} if use else {}
    line = rule.amend(str(function.address), **uses, num_vfs=count)
    place = ", before the line that matches it now," if rule.line else ""
    return f"{line}{place}"


def explain_none_enabled(
    function: pci.PciFunction, rule: policy.Rule, use: str = ""
) -> str:
    """Return that no VF is enabled, with the line that enables all.

    The driver of the PF can do it.

    :param use: of the line; by default that of the rule.
    """
    line = build_line(function, rule, function.total_vfs, use)
    return (
        f"none of its {function.total_vfs} virtual functions is enabled;"
        f" {line} has nova-compute enable them when it starts"
    )


def explain_wrong_driver(
    function: pci.PciFunction, rule: policy.Rule, driver: str
) -> str:
    """Return that the driver of a PF can't enable VFs, with what can."""
    steps = [
        remedy.BindFunction(function=str(function.address), driver=driver)
    ]
    line = rule.amend(
        str(function.address),
        use=policy.DeviceUse.VF.value,
        num_vfs=function.total_vfs,
    )
    text = ", then write ".join(map(str, (*steps, line)))
    return (
        f"none of its {function.total_vfs} virtual functions is enabled, and"
        f" {function.driver or 'no driver'} can't do that; {text}"
    )


def explain_no_vfs(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
    has_sriov: bool,
) -> str:
    """Return why a PF has no VFs though a rule asks for some, or "".

    :param has_sriov: whether its model is known to have SR-IOV.
    """
    if rule.use is not policy.DeviceUse.VF and not rule.num_vfs:
        return ""
    return (
        "has no virtual functions to enable:"
        f" {explain_no_sriov(function, host, has_sriov)}"
    )


def explain_no_sriov(
    function: pci.PciFunction, host: host_reader.HostReader, has_sriov: bool
) -> str:
    """Return why a PF can't have VFs, with what can be done about it.

    :param has_sriov: whether its model is known to have SR-IOV.
    """
    if has_sriov_files(function, host):
        return (
            f"{function.driver or 'the kernel'} allows none (sriov_totalvfs"
            " reads 0)"
        )
    reason = "the kernel finds no SR-IOV in it"
    if links.is_virtual_machine(host):
        return f"{reason}, as in each virtual machine"
    if has_sriov:
        step = remedy.EnableSriov(function=str(function.address))
        return f"{reason}; {step}"
    return f"{reason}; correct its device_spec line"


def has_sriov_files(
    function: pci.PciFunction, host: host_reader.HostReader
) -> bool:
    """Return whether the kernel finds the SR-IOV capability of a function.

    It makes ``sriov_totalvfs`` then (drivers/pci/iov.c, sriov_init). A
    driver may lower the number to 0 (drivers/gpu/drm/xe/xe_sriov.c).
    """
    entries = iommu_group.list_entries(host, str(function.address))
    return "sriov_totalvfs" in entries


def find_vfs_without_pf(
    host: host_reader.HostReader,
    is_supported: Callable[[pci.PciFunction], bool],
) -> Iterator[model.Problem]:
    """Yield a problem for each VF whose PF is not on the bus.

    The reader reports PFs that are on the bus and can't be read.
    """
    for function in host.functions():
        pf = function.physfn
        if pf is None or not is_supported(function):
            continue
        if host.function(str(pf)) or str(pf) in host.unknown():
            continue
        yield model.Problem.of_device(
            function.address,
            f"is not offered: its physical function {pf} is gone"
            " from the bus; rescan the bus or reseat the card",
        )


def read_vf_numbers(
    function: pci.PciFunction, host: host_reader.HostReader
) -> dict[pci.PciAddress, int]:
    """Return the numbers of a PF's VFs, from 0, by address.

    They are the numbers of the PF's links (virtfn0), because the order of
    addresses is wrong if a VF is missing.
    """
    address = str(function.address)
    numbers = {}
    for name in iommu_group.list_entries(host, address):
        match = _VIRTFN.fullmatch(name)
        if match is None:
            continue
        try:
            target = host.target(address, name)
        except errors.UnreadableError:
            continue  # the reader reports it
        if pci.is_address(target):
            numbers[pci.parse_address(target)] = int(match[1])
    return numbers


def describe(
    card: VfCard, host: host_reader.HostReader, rules: policy.DeviceRules
) -> Iterator[model.Device | model.Problem]:
    """Yield the card as one device, and the problems of its VFs."""
    function = card.function
    present = len(function.virtual_functions)
    if function.num_vfs != present:
        yield model.Problem.of_device(
            card.address,
            f"its sriov_numvfs reads {function.num_vfs}, and it has"
            f" {present} virtual functions; if this persists, stop their"
            " guests and enable them again",
        )
    usable, refused = _sort_vfs(card, host, rules)
    vfs = filter(
        None, map(host.function, map(str, function.virtual_functions))
    )
    variant = equal_functions.find_variant(vfs, host)
    for_guests = (variant and variant.driver) or _FOR_GUESTS
    for reason, addresses in refused.items():
        yield _describe_refusal(card, reason, addresses, for_guests)
    if any(vf.driver is None for vf in usable):
        yield from _check_autoprobe(card, host)
    yield from equal_functions.compare_vfs(function, usable, variant)
    if usable:
        yield _build_device(card, usable)


def _check_autoprobe(
    card: VfCard, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield a problem if the host's driver will claim released VFs.

    libvirt has the kernel probe a VF that a guest releases, and the kernel
    does so if the PF's sriov_drivers_autoprobe is 1
    (drivers/pci/pci-driver.c, pci_device_can_probe).
    """
    name = "sriov_drivers_autoprobe"
    try:
        value = host.attribute(card.address, name).strip()
    except errors.UnreadableError:
        return  # Linux before 4.13 has no such file
    if value == "1" and not card.drivers:
        step = remedy.WriteAttribute(
            function=card.address, name=name, value="0"
        )
        yield model.Problem.of_device(
            card.address,
            "the host's driver, if it has one, takes each virtual"
            " function that a guest gives back, and it is not offered any"
            f" more: its {name} is 1;"
            f" {step}",
        )


def _sort_vfs(
    card: VfCard, host: host_reader.HostReader, rules: policy.DeviceRules
) -> tuple[
    tuple[pci.PciFunction, ...], Mapping[_Refusal, list[pci.PciAddress]]
]:
    """Return the VFs that can be offered, and refused VFs by reason."""
    usable: list[pci.PciFunction] = []
    refused: dict[_Refusal, list[pci.PciAddress]] = collections.defaultdict(
        list
    )
    groups: dict[int | None, pci.PciAddress] = {}
    sized = any(q.memory_mb is not None for q in card.quotas.values())
    for address in card.function.virtual_functions:
        function = host.function(str(address))
        if function is None or _is_off(function, rules):
            continue  # the reader reports it, or policy excludes it
        quota = card.quotas.get(address, VfQuota())
        reason = quota.reason or _check_vf(function, card, host, rules)
        if not reason and sized and quota.memory_mb is None:
            reason = "its memory is not known, while that of others is"
        first = groups.get(function.iommu_group)
        if not reason and first is not None:
            shared = iommu_group.explain_shared(card.address, card.address)
            reason = f"it {shared}"
        driver = _find_other_driver(function, card)
        if reason or driver:
            refused[_Refusal(reason=reason, driver=driver)].append(address)
            continue
        groups[function.iommu_group] = address
        usable.append(function)
    return tuple(usable), refused


def _is_off(function: pci.PciFunction, rules: policy.DeviceRules) -> bool:
    rule = rules.rule(str(function.address), function.vendor, function.product)
    return rule.use is policy.DeviceUse.OFF


def _find_other_driver(function: pci.PciFunction, card: VfCard) -> str:
    """Return the host's driver of a VF that no guest can have, or ""."""
    driver = function.driver
    if driver is None or function.is_vfio_bound or driver in card.drivers:
        return ""
    return driver


def _check_vf(
    function: pci.PciFunction,
    card: VfCard,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
) -> str:
    """Return why a VF can't be assigned to a guest, whatever its driver."""
    if function.boot_vga:
        return "the host shows its console on it"
    return iommu_group.check_group(
        function, (function.address,), host
    ) or reset_policy.check_whole((function,), host, rules, card.function)


def _describe_refusal(
    card: VfCard,
    refusal: _Refusal,
    addresses: list[pci.PciAddress],
    for_guests: str,
) -> model.Problem:
    """Return the problem of VFs that can't be offered.

    :param for_guests: the driver with which they could be.
    """
    reason = refusal.reason
    if refusal.driver:
        driver = f"the host's driver {refusal.driver} holds it"
        binding = remedy.describe_binding(
            tuple(map(str, addresses)),
            card.address,
            refusal.driver,
            for_guests,
        )
        reason = (
            f"{driver}, and {reason}" if reason else f"{driver}; {binding}"
        )
    if len(addresses) == 1:
        return model.Problem.of_device(
            addresses[0], f"is not offered: {reason}"
        )
    listed = ", ".join(map(str, addresses[:_MAX_LISTED]))
    rest = len(addresses) - _MAX_LISTED
    tail = f" and {rest} more" if rest > 0 else ""
    return model.Problem.of_device(
        card.address,
        f"its virtual functions {listed}{tail} are not offered: {reason}",
    )


def _build_device(
    card: VfCard, usable: tuple[pci.PciFunction, ...]
) -> model.Device:
    function = card.function
    by_size: dict[int | None, list[pci.PciFunction]] = {}
    for vf in usable:
        size = card.quotas.get(vf.address, VfQuota()).memory_mb
        by_size.setdefault(size, []).append(vf)
    counters = {card.resource_class: len(usable)}
    memory = sum((size or 0) * len(vfs) for size, vfs in by_size.items())
    if memory:
        counters[names.GPU_MEMORY_CLASS] = memory
    shares = str(function.num_vfs)
    # A VF has one profile that does not change, so the available numbers of
    # all profiles add up; device_capacity treats profiles as alternatives.
    return model.Device(
        address=card.address,
        plugin=card.plugin,
        technology="vf",
        vendor=names.vendor_name(function.vendor),
        model=card.model or f"{function.vendor}:{function.product}",
        resource_class=card.resource_class,
        counters=counters,
        slots=tuple(str(vf.address) for vf in usable),
        vendor_id=function.vendor,
        product_id=function.product,
        driver=function.driver,
        numa_node=function.numa_node,
        profiles=tuple(
            _build_profile(card, size, vfs)
            for size, vfs in sorted(
                by_size.items(), key=lambda item: item[0] or 0
            )
        ),
        is_managed=not iommu_group.has_variant_driver(usable),
        fault=card.fault,
        traits=card.traits
        | {names.custom_name("ACCELERATOR", "VFS", shares)}
        | names.identity_traits(
            function.vendor, function.product, function.numa_node
        ),
    )


def _build_profile(
    card: VfCard,
    memory_mb: int | None,
    vfs: Iterable[pci.PciFunction],
) -> model.Profile:
    """Return the profile of VFs with the same memory.

    The kernel has no name for it; it is named after the PF's ids.
    """
    function = card.function
    size = "" if memory_mb is None else f"{memory_mb}M"
    handles = {str(vf.address): f"{vf.vendor}:{vf.product}" for vf in vfs}
    charges = {card.resource_class: 1}
    if memory_mb:
        charges[names.GPU_MEMORY_CLASS] = memory_mb
    return model.Profile(
        name="-".join(
            filter(None, (f"{function.vendor}:{function.product}-VF", size))
        ),
        trait=names.custom_name(
            card.trait_prefix,
            names.vendor_name(function.vendor),
            function.product,
            *filter(None, (size,)),
        ),
        charges=charges,
        available=len(handles),
        handles=handles,
        size=memory_mb or 0,
    )


def to_mebibytes(count: int) -> int:
    """Convert bytes to MiB, rounded down."""
    return count // _MIB


def find_used_vf(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return the first VF that may be in use, empty if none is.

    A VF bound to VFIO may be in a guest; a VF that can't be read may be in
    use too.

    :param probed: drivers that bind to a VF without using it.
    """
    if function.num_vfs > len(function.virtual_functions):
        return f"a virtual function of {function.address} that is not shown"
    for address in function.virtual_functions:
        child = host.function(str(address))
        if child is None or child.boot_vga:
            return str(address)
        if child.driver is not None and child.driver not in probed:
            return str(address)
    return ""


def plan_vf_count(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> tuple[actions.SetVfCount, ...]:
    """Return the action that enables as many VFs as the rule asks for.

    Empty if nothing has to change, or if VFs may be in use. The host's
    drivers do not probe the new VFs: they are for guests.
    """
    count = rule.num_vfs
    if (
        count is None
        or count == function.num_vfs
        or count > function.total_vfs
        or find_used_vf(function, host, probed)
    ):
        return ()
    return (
        actions.SetVfCount(
            function=str(function.address),
            count=count,
            before=function.num_vfs,
            is_probed=False,
        ),
    )


def explain_count_mismatch(
    function: pci.PciFunction,
    requested: int,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return why a PF has another number of VFs than requested.

    :param requested: ``num_vfs`` of the rule.
    """
    if requested > function.total_vfs:
        return (
            f"device_spec asks for {requested} virtual functions, and it has"
            f" {function.total_vfs}; lower num_vfs"
        )
    return (
        f"device_spec asks for {requested} virtual functions,"
        f" {function.num_vfs} are enabled; that is changed"
        f" {describe_count_change(function, host, probed)}"
    )


def describe_count_change(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    probed: Collection[str] = (),
) -> str:
    """Return when the number of VFs will be changed, as a phrase."""
    first = find_used_vf(function, host, probed)
    if not first:
        return "when nova-compute starts"
    return (
        "when nova-compute starts and no guest may have any"
        f" ({first} may be in one)"
    )
