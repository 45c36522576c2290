# SPDX-License-Identifier: Apache-2.0
"""VfCard whose VFs are given to guests as they are.

A VF needs nothing to be made: what it has been given (memory, a share of
the engines) was settled when its PF's driver enabled it. libvirt binds
it to VFIO and back. Which VFs guests have can't be told from kernel
files, so those that are usable count as available, and the books of
Placement say which are taken.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import names, pci
from nova_accel.vendors.common import iommu_group

_VIRTFN = re.compile(r"virtfn(\d+)")
_MIB = 1 << 20
# As many addresses as a message spells out.
_SPELLED = 4

# Every VF of a card has an IOMMU group of its own if the slots above it
# separate their functions from each other.
_MEND = (
    "switch on ACS (and ARI) in the firmware, or put the card in a slot of"
    " its own"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VfQuota:
    """What a VF has been given.

    ``memory_mb`` is None where that is not known; ``reason`` tells why
    the VF can't be used, empty if it can.
    """

    memory_mb: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VfCard:
    """A PF with VFs, as its vendor's driver sees it.

    ``drivers`` are the kernel drivers that a VF may be bound to although
    no guest has it; ``quotas`` may lack VFs of which nothing is known.
    ``resource_class`` is what VFs are counted in, ``stem`` what the traits
    of their profiles begin with. ``model`` is empty where the ids must do,
    ``fault`` tells why no VF is to be used now.
    """

    function: pci.PciFunction
    plugin: str
    drivers: tuple[str, ...]
    quotas: Mapping[pci.PciAddress, VfQuota] = dataclasses.field(
        default_factory=dict
    )
    traits: frozenset[str] = frozenset()
    resource_class: str = names.GPU_CLASS
    stem: str = "GPU_VF"
    model: str = ""
    fault: str = ""

    @property
    def address(self) -> str:
        """Return the PF's address."""
        return str(self.function.address)


def wanted(
    host: host_reader.HostReader,
    rules: policy.Policy,
    is_ours: Callable[[pci.PciFunction], bool],
) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
    """Yield a driver's cards, no VFs, of which policy allows to offer VFs.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    for function in host.functions():
        if function.physfn is not None or not is_ours(function):
            continue
        rule = rules.rule(
            str(function.address), function.vendor, function.product
        )
        if rule.use in (policy.DeviceUse.AUTO, policy.DeviceUse.VF):
            yield function, rule


def none_to_enable(rule: policy.Rule) -> str:
    """Return what is wrong if a card without VFs is to have some."""
    if rule.use is not policy.DeviceUse.VF and not rule.num_vfs:
        return ""
    return (
        "has no virtual functions to enable; mend its device_spec line, or"
        " switch SR-IOV on in the firmware and in its driver"
    )


def orphans(
    host: host_reader.HostReader, is_ours: Callable[[pci.PciFunction], bool]
) -> Iterator[model.Problem]:
    """Yield the VFs whose PF is not on the bus.

    Of a PF that is there and can't be read, the reader has told.
    """
    for function in host.functions():
        above = function.physfn
        if above is None or not is_ours(function):
            continue
        if host.function(str(above)) or str(above) in host.unknown():
            continue
        yield model.Problem(
            where=str(function.address),
            reason=f"is not offered: its physical function {above} is gone"
            " from the bus; rescan the bus or reseat the card",
        )


def numbers(
    function: pci.PciFunction, host: host_reader.HostReader
) -> dict[pci.PciAddress, int]:
    """Return the VFs' numbers, from 0, by address.

    The links on the PF have them (virtfn0); a count of VFs would slip
    where one of them is gone.
    """
    address = str(function.address)
    found = {}
    for name in iommu_group.entries(host, address):
        match = _VIRTFN.fullmatch(name)
        if match is None:
            continue
        try:
            target = host.target(address, name)
        except errors.UnreadableError:
            continue  # the reader has listed why
        if pci.is_address(target):
            found[pci.parse_address(target)] = int(match[1])
    return found


def describe(
    card: VfCard, host: host_reader.HostReader, rules: policy.Policy
) -> Iterator[model.Device | model.Problem]:
    """Yield the card as one device, and what is wrong with its VFs."""
    function = card.function
    present = len(function.virtual_functions)
    if function.num_vfs != present:
        yield model.Problem(
            where=card.address,
            reason=f"says that {function.num_vfs} virtual functions are"
            f" enabled, and {present} are to be found; if that stays so,"
            " free them of guests and enable them again",
        )
    usable, refused = _sorted_out(card, host, rules)
    for reason, addresses in refused.items():
        yield _refusal(card, reason, addresses)
    if any(one.driver is None for one in usable):
        yield from _probed_again(card, host)
    if usable:
        yield _device(card, usable)


def _probed_again(
    card: VfCard, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield that VFs will be the host's once a guest has had them.

    libvirt lets the kernel probe what a guest gives back, and that asks
    the PF whether its VFs are probed (drivers/pci/pci-driver.c,
    pci_device_can_probe).
    """
    name = "sriov_drivers_autoprobe"
    try:
        word = host.attribute(card.address, name).strip()
    except errors.UnreadableError:
        return  # kernels before 4.13 have none
    if word == "1" and not card.drivers:
        yield model.Problem(
            where=card.address,
            reason="the host's driver, if it has one, takes each virtual"
            " function that a guest gives back, and it is not offered any"
            f" more: its {name} is 1; write 0 to it",
        )


def _sorted_out(
    card: VfCard, host: host_reader.HostReader, rules: policy.Policy
) -> tuple[tuple[pci.PciFunction, ...], Mapping[str, list[pci.PciAddress]]]:
    """Return the VFs that can be offered, and the others by reason."""
    usable: list[pci.PciFunction] = []
    refused: dict[str, list[pci.PciAddress]] = collections.defaultdict(list)
    groups: dict[int | None, pci.PciAddress] = {}
    sized = any(q.memory_mb is not None for q in card.quotas.values())
    for address in card.function.virtual_functions:
        function = host.function(str(address))
        if function is None or _is_off(function, rules):
            continue  # the reader has listed why, or the operator knows
        quota = card.quotas.get(address, VfQuota())
        reason = quota.reason or _objection(function, card, host)
        if not reason and sized and quota.memory_mb is None:
            reason = "its memory is not known, while that of others is"
        first = groups.get(function.iommu_group)
        if not reason and first is not None:
            reason = (
                f"it shares its IOMMU group with {first}, and a group goes"
                f" to one guest; {_MEND}"
            )
        if reason:
            refused[reason].append(address)
            continue
        groups[function.iommu_group] = address
        usable.append(function)
    return tuple(usable), refused


def _is_off(function: pci.PciFunction, rules: policy.Policy) -> bool:
    rule = rules.rule(str(function.address), function.vendor, function.product)
    return rule.use is policy.DeviceUse.OFF


def _objection(
    function: pci.PciFunction, card: VfCard, host: host_reader.HostReader
) -> str:
    """Return why a VF can't be given to a guest, empty if it can."""
    free = function.driver is None or function.is_vfio_bound
    if not free and function.driver not in card.drivers:
        return (
            f"the host's driver {function.driver} holds it; unbind it, and"
            " bind it to vfio-pci or to nothing"
        )
    if function.boot_vga:
        return "the host shows its console on it"
    return iommu_group.objection(
        function, (function.address,), host, _MEND
    ) or iommu_group.reset_objection(function, host)


def _refusal(
    card: VfCard, reason: str, addresses: list[pci.PciAddress]
) -> model.Problem:
    if len(addresses) == 1:
        return model.Problem(
            where=str(addresses[0]), reason=f"is not offered: {reason}"
        )
    spelled = ", ".join(map(str, addresses[:_SPELLED]))
    more = len(addresses) - _SPELLED
    tail = f" and {more} more" if more > 0 else ""
    return model.Problem(
        where=card.address,
        reason=f"its virtual functions {spelled}{tail} are not offered:"
        f" {reason}",
    )


def _device(card: VfCard, usable: tuple[pci.PciFunction, ...]) -> model.Device:
    function = card.function
    by_size: dict[int | None, list[pci.PciFunction]] = {}
    for one in usable:
        size = card.quotas.get(one.address, VfQuota()).memory_mb
        by_size.setdefault(size, []).append(one)
    counters = {card.resource_class: len(usable)}
    memory = sum((size or 0) * len(vfs) for size, vfs in by_size.items())
    if memory:
        counters[names.GPU_MEMORY_CLASS] = memory
    shares = str(function.num_vfs)
    # Each VF is of one profile for good, so the profiles' numbers add up;
    # packing.settle, which must take them for each other's, would not.
    return model.Device(
        address=card.address,
        plugin=card.plugin,
        technology="vf",
        vendor=names.vendor_name(function.vendor),
        model=card.model or f"{function.vendor}:{function.product}",
        resource_class=card.resource_class,
        counters=counters,
        slots=tuple(str(one.address) for one in usable),
        vendor_id=function.vendor,
        product_id=function.product,
        driver=function.driver,
        numa_node=function.numa_node,
        profiles=tuple(
            _profile(card, size, vfs)
            for size, vfs in sorted(
                by_size.items(), key=lambda item: item[0] or 0
            )
        ),
        is_managed=not iommu_group.keeps_driver(usable),
        fault=card.fault,
        traits=card.traits
        | {names.custom("ACCELERATOR", "VFS", shares)}
        | names.identity_traits(
            function.vendor, function.product, function.numa_node
        ),
    )


def _profile(
    card: VfCard,
    memory_mb: int | None,
    vfs: Iterable[pci.PciFunction],
) -> model.Profile:
    """Return what VFs of one size are; the kernel has no name for it."""
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
        trait=names.custom(
            card.stem,
            names.vendor_name(function.vendor),
            function.product,
            *filter(None, (size,)),
        ),
        charges=charges,
        available=len(handles),
        handles=handles,
        size=memory_mb or 0,
    )


def mebibytes(count: int) -> int:
    """Return a number of bytes in MiB, rounded down."""
    return count // _MIB
