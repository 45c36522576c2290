# SPDX-License-Identifier: Apache-2.0
"""Acme's Lattice 100: virtual functions, each with memory of its own.

The card and its kernel driver are made up. The PF is bound to ``lattice``
and has the attributes ``lattice/firmware`` (2.1.0), ``lattice/health`` (ok,
or an error) and ``lattice/vf_memory_mb`` (memory of each VF in MiB). Guests
get VFs that are bound to the variant driver ``lattice_vfio_pci``.
"""

from collections.abc import Iterator, Sequence

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import iommu_group

_VENDOR, _PRODUCT = "f00d", "0100"
_DRIVER, _GUEST_DRIVER = "lattice", "lattice_vfio_pci"
_VF_CLASS, _MEMORY_CLASS = "CUSTOM_LATTICE_VF", "CUSTOM_LATTICE_MEMORY_MB"
_HINT = "switch on ACS in the firmware, or use another slot"
# The card has 64 GiB.
_MAX_MEMORY_MB = 65536


class LatticeDriver:
    """Describes Lattice cards, and plans their VFs."""

    name = "lattice"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each PF of the card with virtual functions.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for pf in _find_cards(card, rules):
            if str(pf.address) in taken:
                continue
            yield from _check_vfs(pf)
            usable = []
            for address in pf.virtual_functions:
                function = card.function(str(address))
                if function is None:
                    continue  # the reader reports it
                reason = _check_vf(function, card, rules)
                if reason:
                    yield _build_problem(function, f"is not offered: {reason}")
                else:
                    usable.append(function)
            if usable:
                yield from _describe_card(pf, tuple(usable), card)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the action that binds a VF to the guests' driver."""
        return (actions.BindDriver(function=claim.slot, driver=_GUEST_DRIVER),)

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the action that unbinds the VF again."""
        return (
            actions.BindDriver(
                function=claim.slot, driver="", before=_GUEST_DRIVER
            ),
        )

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the actions that enable as many VFs as policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            actions.SetVfCount(
                function=str(card.address),
                count=count,
                before=card.num_vfs,
                is_probed=False,
            )
            for card in _find_cards(host, rules)
            if (count := _requested_count(card, rules)) is not None
            and card.driver == _DRIVER
            and card.num_vfs == len(card.virtual_functions)
            and all(_is_idle(host, vf) for vf in card.virtual_functions)
        )


def _find_cards(
    host: host_reader.HostReader, rules: policy.DeviceRules
) -> Iterator[pci.PciFunction]:
    """Yield the PFs whose VFs policy offers."""
    for function in host.functions():
        if (function.vendor, function.product) != (_VENDOR, _PRODUCT):
            continue
        if _find_rule(function, rules).use in (
            policy.DeviceUse.AUTO,
            policy.DeviceUse.VF,
        ):
            yield function


def _find_rule(
    function: pci.PciFunction, rules: policy.DeviceRules
) -> policy.Rule:
    return rules.rule(str(function.address), function.vendor, function.product)


def _requested_count(
    card: pci.PciFunction, rules: policy.DeviceRules
) -> int | None:
    """Return the number of VFs to enable, None if it need not change."""
    count = _find_rule(card, rules).num_vfs
    if count is None or count == card.num_vfs or count > card.total_vfs:
        return None
    return count


def _is_idle(host: host_reader.HostReader, address: pci.PciAddress) -> bool:
    """Return whether no guest can have a VF; one bound to VFIO may be used."""
    function = host.function(str(address))
    return function is not None and function.driver is None


def _build_problem(function: pci.PciFunction, reason: str) -> model.Problem:
    return model.Problem(
        where=str(function.address),
        reason=reason,
        address=str(function.address),
    )


def _check_vfs(card: pci.PciFunction) -> Iterator[model.Problem]:
    """Yield why a card has no VFs."""
    if card.num_vfs:
        return
    if card.driver != _DRIVER:
        yield _build_problem(card, f"has no VFs; bind it to {_DRIVER} first")
    elif card.total_vfs:
        yield _build_problem(card, "has no VFs; set num_vfs in device_spec")


def _check_vf(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
) -> str:
    """Return why a VF can't be assigned to a guest, or ""."""
    if _find_rule(function, rules).use is policy.DeviceUse.OFF:
        return "device_spec says use off for it"
    if function.driver is not None and not function.is_vfio_bound:
        return f"the host's driver {function.driver} holds it; unbind it"
    return iommu_group.check_group(function, (function.address,), host, _HINT)


def _read_attribute(
    card: pci.PciFunction, host: host_reader.HostReader, name: str
) -> str:
    """Return an attribute of the card's kernel driver.

    :raises UnreadableError: it can't be read.
    """
    return host.attribute(str(card.address), f"lattice/{name}").strip()


def _describe_card(
    card: pci.PciFunction,
    usable: tuple[pci.PciFunction, ...],
    host: host_reader.HostReader,
) -> Iterator[model.Device | model.Problem]:
    """Yield the card, and a problem for each unreadable attribute."""
    traits = names.identity_traits(card.vendor, card.product, card.numa_node)
    memory, fault = 0, ""
    try:
        text = _read_attribute(card, host, "vf_memory_mb")
        memory = int(text) if text.isdecimal() else 0
        if not 0 < memory <= _MAX_MEMORY_MB:
            memory = 0
            yield _build_problem(
                card, f"vf_memory_mb is no size: {text[:40]!r}"
            )
    except errors.UnreadableError as error:
        yield _build_problem(card, f"no VF can be assigned: {error}")
    try:
        health = _read_attribute(card, host, "health")
        fault = "" if health == "ok" else f"lattice says {health[:40]!r}"
    except errors.UnreadableError as error:
        yield _build_problem(card, f"its health is not known: {error}")
    try:
        firmware = _read_attribute(card, host, "firmware")
        traits |= {names.custom_name("ACCELERATOR_LATTICE_FIRMWARE", firmware)}
    except errors.UnreadableError:
        pass  # old firmware has no such file; omit the trait
    yield _build_device(card, usable, memory, traits, fault)


def _build_device(
    card: pci.PciFunction,
    usable: tuple[pci.PciFunction, ...],
    memory: int,
    traits: frozenset[str],
    fault: str,
) -> model.Device:
    counters = {_VF_CLASS: len(usable)}
    profiles: tuple[model.Profile, ...] = ()
    if memory:
        counters[_MEMORY_CLASS] = memory * len(usable)
        profiles = (
            model.Profile(
                name=f"LX100-{memory}M",
                trait=names.custom_name("ACCELERATOR_LX100", f"{memory}M"),
                charges={_VF_CLASS: 1, _MEMORY_CLASS: memory},
                available=len(usable),
            ),
        )
    return model.Device(
        address=str(card.address),
        plugin=LatticeDriver.name,
        technology="vf",
        vendor="acme",
        model="LX100",
        resource_class=_VF_CLASS,
        counters=counters,
        slots=tuple(str(vf.address) for vf in usable),
        vendor_id=card.vendor,
        product_id=card.product,
        driver=card.driver,
        numa_node=card.numa_node,
        profiles=profiles,
        traits=traits,
        is_managed=False,
        fault=fault,
    )
