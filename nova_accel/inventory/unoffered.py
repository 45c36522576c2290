# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a host that are not offered, with the reasons.

``nova-accel inspect`` prints them; the keys of ``Unoffered.as_dict`` are a
stable interface.
"""

import dataclasses
import types
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.inventory import printed_remedies
from nova_accel.model import names, pci

# Returns None if a line would have a function, or its VFs, offered; else why
# not, empty if no driver says why.
TryLine = Callable[[remedy.SpecLine], str | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unoffered:
    """An accelerator that no device includes.

    ``function`` is None for a device that is not on the PCI bus. ``name`` is
    its model, empty where unknown. ``is_problem`` is True where the reason
    is also one of the host's problems.
    """

    address: str
    function: pci.PciFunction | None
    name: str
    reason: str
    is_problem: bool = False

    @property
    def ids(self) -> str:
        """Return the vendor and device id: ``10de:20b5``."""
        function = self.function
        return f"{function.vendor}:{function.product}" if function else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for JSON; ids are empty off the PCI bus."""
        function = self.function
        return {
            "address": self.address,
            "vendor_id": function.vendor if function else "",
            "product_id": function.product if function else "",
            "model": self.name or self.ids,
            "class": f"{function.class_code:06x}" if function else "",
            "driver": function.driver if function else None,
            "reason": self.reason,
        }

    def as_text(self) -> str:
        """Return the entry as one line of text."""
        title = f"{self.address}  {self.ids} {self.name}".rstrip()
        if self.function is not None:
            title += f"  class {self.function.class_code:06x}"
        return f"{title}: {self.reason}"


def find(
    state: model.HostState,
    functions: Iterable[pci.PciFunction],
    rules: policy.DeviceRules,
    unreadable: Collection[model.Problem] = (),
    models: Mapping[str, str] = types.MappingProxyType({}),
    accelerators: Sequence[str] = (),
    try_line: TryLine = lambda line: "",
) -> tuple[Unoffered, ...]:
    """Return the accelerators that no device of the host includes.

    :param functions: all PCI functions of the host. For VFs the PF is
        returned.
    :param unreadable: problems that are no reasons of a driver.
    :param models: names of models by address.
    :param accelerators: addresses or names of the devices that the kernel
        lists as accelerators.
    :param try_line: a line is named as a remedy only if it would work.
    """
    offered = _list_addresses(state)
    problems = _driver_reasons(state, unreadable)
    unoffered = []
    for function in functions:
        address = str(function.address)
        is_expected = (
            pci_ids.is_candidate(function)
            or function.is_vfio_bound
            or address in accelerators
        )
        is_part = function.physfn is not None or address in offered
        if is_part or not is_expected:
            continue
        reasons = problems.get(address) or _reasons(function, rules, try_line)
        unoffered.append(
            Unoffered(
                address=address,
                function=function,
                name=models.get(address, ""),
                reason="; ".join(reasons),
                is_problem=address in problems,
            )
        )
    unoffered += [
        Unoffered(
            address=name,
            function=None,
            name="",
            reason="the kernel lists it as an accelerator; it is not on the"
            " PCI bus, so that no guest can have it",
        )
        for name in accelerators
        if not pci.is_address(name) and name not in offered
    ]
    return tuple(unoffered)


def _list_addresses(state: model.HostState) -> frozenset[str]:
    """Return the addresses of all functions of devices."""
    return frozenset(
        address
        for device in state.devices
        for address in (
            device.address,
            device.parent,
            *device.slots,
            *device.members,
        )
    )


def _driver_reasons(
    state: model.HostState, unreadable: Collection[model.Problem]
) -> dict[str, list[str]]:
    """Return the reasons that drivers report, by address of the function.

    Problems of an FPGA region are reasons of its card. Problems of a type
    of a device are none.
    """
    reasons: dict[str, list[str]] = {}
    ignored = frozenset(unreadable)
    for problem in state.problems:
        is_of_type = problem.where != problem.address
        if problem not in ignored and not is_of_type:
            card = names.card_address(problem.address)
            reasons.setdefault(card, []).append(problem.reason)
    return reasons


def _reasons(
    function: pci.PciFunction, rules: policy.DeviceRules, try_line: TryLine
) -> Iterator[str]:
    """Yield why no driver of the library offers a function."""
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if rule.use is policy.DeviceUse.OFF:
        yield "device_spec says use off"
        return
    reasons = [*_list_obstacles(function)]
    if rule.use is not policy.DeviceUse.AUTO:
        reasons.append(
            f"device_spec says use {rule.use.value}, which it can't do now"
        )
    elif hint := _hint(function, rule, try_line):
        reasons.append(hint)
    yield from reasons or ["none of the drivers in [nova_accel] offers it"]


def _list_obstacles(function: pci.PciFunction) -> Iterator[str]:
    if function.boot_vga:
        yield "the host's boot display"
    if function.num_vfs:
        noun = "function" if function.num_vfs == 1 else "functions"
        yield f"{function.num_vfs} virtual {noun} enabled"
    if _has_host_driver(function):
        yield f"the host's driver {function.driver} holds it"
    if function.iommu_group is None:
        yield "in no IOMMU group"


def _has_host_driver(function: pci.PciFunction) -> bool:
    return function.driver is not None and not function.is_vfio_bound


def _hint(
    function: pci.PciFunction, rule: policy.Rule, try_line: TryLine
) -> str:
    """Return the device_spec line that would offer a function, or ""."""
    is_console = function.boot_vga and not function.is_vfio_bound
    if function.num_vfs or is_console or function.iommu_group is None:
        return ""
    address = str(function.address)
    whole = rule.amend(address, use=policy.DeviceUse.PASSTHROUGH.value)
    qat = pci_ids.find_qat(function)
    if qat and function.total_vfs:
        vfs = rule.amend(
            address,
            use=policy.DeviceUse.VF.value,
            num_vfs=function.total_vfs,
        )
        if function.driver != qat.driver:
            return _hint_driver(function, qat.driver, vfs)
        if try_line(vfs) is None:
            return f"offered by {vfs}"
    obstacle = try_line(whole)
    if obstacle is None:
        return f"offered by {whole}"
    steps = tuple(printed_remedies.find(obstacle))
    if steps and not any(isinstance(s, remedy.SpecLine) for s in steps):
        return f"{obstacle}, then write {whole}"
    return obstacle


def _hint_driver(
    function: pci.PciFunction, driver: str, vfs: remedy.SpecLine
) -> str:
    """Return the remedy for a PF that lacks the driver of its VFs."""
    binding = remedy.BindFunction(
        function=str(function.address), driver=driver
    )
    return (
        f"its virtual functions need the driver {driver}, and"
        f" {function.driver or 'no driver'} has it; {binding}, then write"
        f" {vfs}"
    )
