# SPDX-License-Identifier: Apache-2.0
"""Checks whether devices are reset between guests, or policy waives it.

The scrub resets functions that go to a guest whole. FPGA regions are
blanked instead.
"""

from collections.abc import Sequence

from nova_accel import errors
from nova_accel.claims import card_reset
from nova_accel.config import policy, remedy
from nova_accel.host.execute import reset_checks
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci


def read(
    functions: Sequence[pci.PciFunction], host: host_reader.HostReader
) -> tuple[card_reset.BusFunctions, ...]:
    """Return how functions that go to one guest are reset, by bus.

    :param functions: the functions, the assigned one first.
    :raises UnreadableError: a function can't be read.
    """
    addresses = [str(function.address) for function in functions]
    return reset_checks.read_buses(host.files, addresses)


def check_whole(
    functions: Sequence[pci.PciFunction],
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    card: pci.PciFunction | None = None,
) -> str:
    """Return why functions are not offered for want of a reset, or "".

    Empty if their rule offers them without one, or a server has them.

    :param functions: the functions of one guest, the assigned one first.
    :param card: the PF of a VF, whose line of device_spec counts.
    """
    owner = card or functions[0]
    rule = rules.rule(str(owner.address), owner.vendor, owner.product)
    if rule.is_offered_unreset or not rules.assigned.isdisjoint(
        str(function.address) for function in functions
    ):
        return ""
    try:
        buses = read(functions, host)
    except errors.UnreadableError as error:
        return f"whether it can be reset is unknown: {error}"
    if any(f.unread for bus in buses for f in bus.functions):
        return explain_unknown(buses)
    reason = explain_unreset(buses)
    if not reason or is_disabled(buses):
        return reason
    line = offering_line(rule, functions[0], card)
    return f"{reason}; offered without a reset by {line}"


def explain_unreset(buses: Sequence[card_reset.BusFunctions]) -> str:
    """Return why functions can't be reset between guests, or "".

    That it is not known whether they have a reset is no reason.
    """
    bus = card_reset.find_unresettable(buses)
    if bus is None:
        return ""
    return f"it can't be reset between guests: {bus.explain_none()}"


def is_disabled(buses: Sequence[card_reset.BusFunctions]) -> bool:
    """Return whether a function has resets that were only disabled."""
    bus = card_reset.find_unresettable(buses)
    return bus is not None and bus.functions[0].is_disabled


def explain_unknown(buses: Sequence[card_reset.BusFunctions]) -> str:
    """Return why it is unknown whether functions can be reset, or ""."""
    for bus in buses:
        for function in bus.functions:
            if function.unread:
                return f"whether it can be reset is unknown: {function.unread}"
        if bus.is_unknown:
            return (
                "whether it can be reset is unknown: these files show the"
                " reset of no function"
            )
    return ""


def offering_line(
    rule: policy.Rule,
    function: pci.PciFunction,
    card: pci.PciFunction | None = None,
) -> remedy.SpecLine:
    """Return the line that offers a function, or VFs, without a reset."""
    use = policy.DeviceUse.VF if card else policy.DeviceUse.PASSTHROUGH
    address = str((card or function).address)
    return rule.amend(address, use=use.value, scrub=policy.NONE)


def check_region(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that resets of a region's function are disabled, or "".

    Regions are not reset between servers, but VFIO resets their function.
    """
    try:
        (bus,) = read((function,), host)
    except errors.UnreadableError as error:
        return f"whether it can be reset is unknown: {error}"
    (first,) = bus.functions
    if first.unread:
        return explain_unknown((bus,))
    if not first.is_disabled:
        return ""
    return explain_unreset((bus,))
