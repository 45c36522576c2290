# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a host that are not offered, and the reason for each."""

import dataclasses
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.model import pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unoffered:
    """A PCI function that no device includes.

    ``name`` is empty where nothing tells it. ``is_problem`` says that the
    reason is among the problems of the host, too.
    """

    function: pci.PciFunction
    name: str
    reason: str
    is_problem: bool = False

    @property
    def ids(self) -> str:
        """Return the vendor's and the device's id, as ``10de:20b5``."""
        return f"{self.function.vendor}:{self.function.product}"

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for programs; its keys are a stable interface."""
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
        """Return the line for people."""
        title = f"{self.ids} {self.name}".strip()
        return (
            f"{self.function.address}  {title}"
            f"  class {self.function.class_code:06x}: {self.reason}"
        )


def find(
    state: model.HostState,
    functions: Iterable[pci.PciFunction],
    rules: policy.Policy,
    unreadable: Collection[model.Problem] = (),
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Unoffered, ...]:
    """Return the accelerators that no device of the host includes.

    :param functions: all PCI functions of the host. VFs are left out:
        their PF is returned.
    :param unreadable: problems that only tell what can't be read.
    :param names: of models, by address.
    """
    offered = _offered(state)
    problems = _reasons_of_drivers(state, unreadable)
    found = []
    for function in functions:
        address = str(function.address)
        is_expected = pci_ids.is_candidate(function) or function.is_vfio_bound
        is_part = function.physfn is not None or address in offered
        if is_part or not is_expected:
            continue
        reasons = problems.get(address) or _reasons(function, rules)
        found.append(
            Unoffered(
                function=function,
                name=names.get(address, ""),
                reason="; ".join(reasons),
                is_problem=address in problems,
            )
        )
    return tuple(found)


def _offered(state: model.HostState) -> frozenset[str]:
    """Return the addresses of all functions that devices consist of."""
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


def _reasons_of_drivers(
    state: model.HostState, unreadable: Collection[model.Problem]
) -> dict[str, list[str]]:
    """Return what the library's drivers say of functions, by address.

    Of a card with FPGA regions they say it of each region.
    """
    found: dict[str, list[str]] = {}
    for problem in state.problems:
        if problem not in unreadable:
            address = problem.where.partition("/")[0]
            found.setdefault(address, []).append(problem.reason)
    return found


def _reasons(function: pci.PciFunction, rules: policy.Policy) -> Iterator[str]:
    """Yield why no driver of the library offers a function."""
    address = str(function.address)
    rule = rules.rule(address, function.vendor, function.product)
    if rule.use is policy.DeviceUse.OFF:
        yield "device_spec says use off"
        return
    reasons = [*_obstacles(function)]
    if rule.use is not policy.DeviceUse.AUTO:
        reasons.append(
            f"device_spec says use {rule.use.value}, which it can't do now"
        )
    elif advice := _advice(function):
        reasons.append(advice)
    yield from reasons or ["none of the drivers in [nova_accel] offers it"]


def _obstacles(function: pci.PciFunction) -> Iterator[str]:
    if function.boot_vga:
        yield "the host's boot display"
    if function.num_vfs:
        noun = "function" if function.num_vfs == 1 else "functions"
        yield f"{function.num_vfs} virtual {noun} enabled"
    if _is_held(function):
        yield f"the host's driver {function.driver} holds it"
    if function.iommu_group is None:
        yield "in no IOMMU group"


def _is_held(function: pci.PciFunction) -> bool:
    return function.driver is not None and not function.is_vfio_bound


def _advice(function: pci.PciFunction) -> str:
    """Return which device_spec line makes a function offered, or ""."""
    if function.boot_vga or function.num_vfs:
        return ""
    if pci_ids.find_qat(function) and function.total_vfs:
        return "offered as VFs if a device_spec line sets num_vfs"
    kind = pci_ids.find(function)
    if kind is None and not pci_ids.is_gpu(function):
        return "of a kind that is offered only if a device_spec line names it"
    if _is_held(function) or (kind is not None and kind.keeps_data):
        return "offered whole if a device_spec line says use passthrough"
    return ""
