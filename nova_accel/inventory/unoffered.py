# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a host that are not offered, with the reasons.

``nova-accel inspect`` prints them; the keys of ``Unoffered.as_dict`` are a
stable interface.
"""

import dataclasses
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.model import names, pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unoffered:
    """A PCI function that no device includes.

    ``name`` is its model, empty where unknown. ``is_problem`` is True where
    the reason is also one of the host's problems.
    """

    function: pci.PciFunction
    name: str
    reason: str
    is_problem: bool = False

    @property
    def ids(self) -> str:
        """Return the vendor and device id: ``10de:20b5``."""
        return f"{self.function.vendor}:{self.function.product}"

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        return {
            "address": str(self.function.address),
            "vendor_id": self.function.vendor,
            "product_id": self.function.product,
            "model": self.name or self.ids,
            "class": f"{self.function.class_code:06x}",
            "driver": self.function.driver,
            "reason": self.reason,
        }

    def as_text(self) -> str:
        """Return the entry as one line of text."""
        title = f"{self.ids} {self.name}".strip()
        return (
            f"{self.function.address}  {title}"
            f"  class {self.function.class_code:06x}: {self.reason}"
        )


def find(
    state: model.HostState,
    functions: Iterable[pci.PciFunction],
    rules: policy.DeviceRules,
    unreadable: Collection[model.Problem] = (),
    models: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Unoffered, ...]:
    """Return the accelerators that no device of the host includes.

    :param functions: all PCI functions of the host. For VFs the PF is
        returned.
    :param unreadable: problems that are no reasons of a driver.
    :param models: names of models by address.
    """
    offered = _list_addresses(state)
    problems = _driver_reasons(state, unreadable)
    unoffered = []
    for function in functions:
        address = str(function.address)
        is_expected = pci_ids.is_candidate(function) or function.is_vfio_bound
        is_part = function.physfn is not None or address in offered
        if is_part or not is_expected:
            continue
        reasons = problems.get(address) or _reasons(function, rules)
        unoffered.append(
            Unoffered(
                function=function,
                name=models.get(address, ""),
                reason="; ".join(reasons),
                is_problem=address in problems,
            )
        )
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
    function: pci.PciFunction, rules: policy.DeviceRules
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
    elif hint := _hint(function):
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


def _hint(function: pci.PciFunction) -> str:
    """Return the device_spec line that would offer a function, or ""."""
    if function.num_vfs or function.iommu_group is None:
        return ""  # no line helps
    if function.boot_vga:
        is_free = function.is_vfio_bound
        use = '"use": "passthrough"'
        return _offering_line(function, use) if is_free else ""
    if pci_ids.find_qat(function) and function.total_vfs:
        return _offering_line(
            function, f'"use": "vf", "num_vfs": {function.total_vfs}'
        )
    kind = pci_ids.find(function)
    is_unknown = kind is None and not pci_ids.is_gpu(function)
    keeps_data = kind is not None and kind.keeps_data
    if is_unknown or keeps_data or _has_host_driver(function):
        return _offering_line(function, '"use": "passthrough"')
    return ""


def _offering_line(function: pci.PciFunction, use: str) -> str:
    address = f'"address": "{function.address}"'
    return f"offered by device_spec = {{{address}, {use}}}"
