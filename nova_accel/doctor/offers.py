# SPDX-License-Identifier: Apache-2.0
"""Checks that each accelerator is offered, with the reasons of ``inspect``.

Text and remedy of a device are those of ``nova-accel inspect``: both commands
print what the vendor drivers report.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.inventory import printed_remedies
from nova_accel.model import names, pci

NVIDIA = host_checks.Area("nv", page="gpus", technology="nvidia")
INTEL = host_checks.Area("intel", page="gpus", technology="intel")
AMD = host_checks.Area("amd", page="gpus", technology="amd")
QAT = host_checks.Area("qat", page="other-accelerators", technology="qat")
FPGA = host_checks.Area("fpga", page="fpgas", technology="fpga")
OTHERS = host_checks.Area("pci", page="other-accelerators", is_of_devices=True)
AREAS = (NVIDIA, INTEL, AMD, QAT, FPGA, OTHERS)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_WHY = "no server gets an accelerator that is not offered"
_REMEDY = "do what the reason says, then\nnova-accel inspect"
_MODULES = (remedy.LoadModule, remedy.InstallModule)
# Corrections of functions that another driver has than their equals.
_BINDINGS = (remedy.BindFunction, remedy.BindVfs)


def _report(
    host: _Host,
    cards: Iterable[pci.PciFunction],
    needs_module: bool | None = None,
) -> _Results:
    """Yield the reasons of cards.

    :param needs_module: only those whose remedy is a kernel module, or only
        the others; None for all.
    """
    for card in cards:
        for address, text in _list_reasons(host, card):
            steps = tuple(printed_remedies.find(text))
            has_module = any(
                isinstance(step, _MODULES)
                and step.module != pci_ids.COHERENT_DRIVER
                for step in steps
            )
            if needs_module is not None and has_module is not needs_module:
                continue
            is_unused = card.num_vfs and not _is_offered(host, card)
            is_strange = any(isinstance(step, _BINDINGS) for step in steps)
            is_warning = is_unused or is_strange or needs_module
            observe = warn if is_warning else note
            if _is_faulted(host, card):
                observe = fail
            yield observe(
                f"{address}: {text}",
                host.path(card, "driver"),
                remedy=remedies.explain(host, text),
            )


def _is_offered(host: _Host, card: pci.PciFunction) -> bool:
    device = host.state.device(str(card.address))
    return device is not None and bool(device.counters)


def _is_faulted(host: _Host, card: pci.PciFunction) -> bool:
    """Return whether the card, or a part of it, is set aside."""
    address = str(card.address)
    return any(
        device.fault
        for device in host.state.devices
        if address in (device.address, device.parent)
    )


def _list_parts(card: pci.PciFunction) -> frozenset[str]:
    return frozenset(map(str, (card.address, *card.virtual_functions)))


def _list_reasons(
    host: _Host, card: pci.PciFunction
) -> Iterator[tuple[str, str]]:
    """Yield the reasons of ``inspect`` for a card and its parts.

    For a card that policy leaves out these are its problems only.
    """
    parts = _list_parts(card)
    for problem in host.state.problems:
        if names.card_address(problem.address) in parts:
            yield problem.where, problem.reason
    rule = host.device_rules.rule(str(card.address), card.vendor, card.product)
    for item in host.unoffered:
        is_left_out = rule.use is policy.DeviceUse.OFF
        if item.address in parts and not (item.is_problem or is_left_out):
            yield item.address, f"is not offered: {item.reason}"


def _is_of(vendor: str) -> Callable[[pci.PciFunction], bool]:
    return lambda card: card.vendor == vendor and pci_ids.is_gpu(card)


@NVIDIA.check(
    "manager",
    why='no vGPU can be created ("Host VGPU Mode: N/A"); passthrough and MIG'
    " of containers need none",
    remedy="install NVIDIA's vGPU manager of the NVIDIA enterprise portal",
    ansible="nvidia_vgpu_host",
)
def check_manager(host: _Host) -> _Results:
    """The vGPU manager is loaded where cards can have vGPUs."""
    cards = filter(_is_of(checked_host.NVIDIA), host.cards)
    return _report(host, cards, needs_module=True)


@NVIDIA.check("offers", why=_WHY, remedy=_REMEDY)
def check_nvidia(host: _Host) -> _Results:
    """Each NVIDIA card is offered, with all of its VFs."""
    cards = filter(_is_of(checked_host.NVIDIA), host.cards)
    return _report(host, cards, needs_module=False)


@INTEL.check("offers", why=_WHY, remedy=_REMEDY, ansible="intel_xe")
def check_intel(host: _Host) -> _Results:
    """Each Intel GPU is offered, with all of its VFs."""
    return _report(host, filter(_is_of(checked_host.INTEL), host.cards))


@AMD.check(
    "driver",
    why="amdgpu makes no VFs; the driver gim does",
    remedy="install AMD's host driver gim",
    ansible="amd_gim",
)
def check_amd_driver(host: _Host) -> _Results:
    """AMD's cards with SR-IOV have the driver gim."""
    cards = filter(_is_of(checked_host.AMD), host.cards)
    return _report(host, cards, needs_module=True)


@AMD.check("offers", why=_WHY, remedy=_REMEDY)
def check_amd(host: _Host) -> _Results:
    """Each AMD GPU is offered, with all of its VFs."""
    cards = filter(_is_of(checked_host.AMD), host.cards)
    return _report(host, cards, needs_module=False)


@QAT.check("offers", why=_WHY, remedy=_REMEDY, ansible="qat")
def check_qat(host: _Host) -> _Results:
    """Each QAT device is offered, with all of its VFs."""
    return _report(host, host.qats)


@FPGA.check("offers", why=_WHY, remedy=_REMEDY)
def check_fpga(host: _Host) -> _Results:
    """Each FPGA card is offered."""
    return _report(host, host.fpgas)


@OTHERS.check("offers", why=_WHY, remedy=_REMEDY)
def check_others(host: _Host) -> _Results:
    """Each other accelerator of the host is offered."""
    vendors = (checked_host.NVIDIA, checked_host.INTEL, checked_host.AMD)
    areas = itertools.chain(
        *map(host.cards_of, vendors), host.qats, host.fpgas
    )
    reported = frozenset().union(*map(_list_parts, areas))
    reasons = {item.address for item in host.unoffered} | {
        names.card_address(p.address) for p in host.state.problems
    }
    cards = [
        function
        for function in host.functions.values()
        if function.physfn is None
        and not reported.intersection(parts := _list_parts(function))
        and reasons.intersection(parts)
    ]
    yield from _report(host, cards)
    reported = reported.union(*map(_list_parts, cards))
    for problem in host.state.problems:
        if names.card_address(problem.address) not in reported:
            yield warn(f"{problem.where}: {problem.reason}")
    for item in host.unoffered:
        if item.function is None:
            yield note(f"{item.address}: {item.reason}")
