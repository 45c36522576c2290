# SPDX-License-Identifier: Apache-2.0
"""Plan for scrubbing functions between two servers.

Partitions are removed and made again, and FPGA regions are blanked. Whole
functions, of a card or VFs, keep the data of the last server unless they
are reset.
"""

from collections.abc import Iterator, Sequence

from nova_accel.claims import card_reset
from nova_accel.config import policy
from nova_accel.model import actions

# Bytes that are read of configuration space: ids, command, status, class,
# header type (PCI Local Bus Specification, 6.1).
HEADER_SIZE = 16
_VFIO_DRIVER = "vfio-pci"


def plan(
    buses: Sequence[card_reset.BusFunctions],
    rule: policy.Rule,
    *,
    is_refused: bool = False,
) -> tuple[actions.Action, ...]:
    """Return the actions that scrub a server's functions.

    Without ``scrub`` in the rule, functions are reset that are resettable
    and have no driver of the host, as a driver does not expect a reset.
    With ``reset``, all are, and are unbound from their drivers meanwhile.
    Functions that can only be reset together are, if the first one has no
    driver of the host. The command is run last, once, with the first
    function and the host's driver bound.

    :param is_refused: whether the kernel has refused to reset a function by
        itself (ENOTTY). Then buses are reset where that is possible.
    """
    resets = tuple(
        action for bus in buses for action in _reset(bus, rule, is_refused)
    )
    if not rule.scrub_command or not buses:
        return resets
    first = buses[0].functions[0].address
    return (
        *resets,
        actions.RunScrub(command=rule.scrub_command, function=first),
    )


def find_unresettable(
    buses: Sequence[card_reset.BusFunctions], rule: policy.Rule
) -> card_reset.BusFunctions | None:
    """Return the first bus that is due to be reset and can't be, if any.

    With ``reset`` in the rule, the kernel's own error is reported.
    """
    if rule.scrub:
        return None
    return card_reset.find_unresettable(
        [bus for bus in buses if not bus.functions[0].driver]
    )


def _reset(
    bus: card_reset.BusFunctions, rule: policy.Rule, is_refused: bool
) -> Iterator[actions.Action]:
    if rule.scrub == policy.NONE:
        return
    is_forced = rule.scrub == policy.RESET
    is_held = bool(bus.functions[0].driver) and not is_forced
    is_together = bus.is_reset_together or (is_refused and bus.is_bus_alone)
    if is_together and not is_held:
        yield from _reset_together(bus)
        return
    for function in bus.functions:
        is_free = bool(bus.methods_of(function)) and not function.driver
        if is_forced or is_free:
            yield from _reset_alone(function)


def _reset_alone(
    function: card_reset.ReleasedFunction,
) -> Iterator[actions.Action]:
    unbind = actions.BindDriver(
        function=function.address, driver="", before=function.driver
    )
    if function.driver:
        yield unbind
    yield actions.ResetFunction(function=function.address)
    if function.driver:
        yield unbind.undo()


def _reset_together(
    bus: card_reset.BusFunctions,
) -> Iterator[actions.Action]:
    """Yield the actions that reset a bus while VFIO has its functions.

    The kernel resets a bus for VFIO only if no other process and no driver
    of the host has a function on it.
    """
    binds = [
        actions.BindDriver(
            function=function.address,
            driver=_VFIO_DRIVER,
            before=function.bound,
        )
        for function in bus.functions
        if "vfio" not in function.bound
    ]
    yield from binds
    yield actions.ResetTogether(
        functions=tuple(function.address for function in bus.functions)
    )
    for bind in reversed(binds):
        yield bind.undo()


def is_answer(header: bytes, identity: bytes | None) -> bool:
    """Return whether a function answers, by its configuration space.

    A function that does not answer reads as ones.

    :param header: the first ``HEADER_SIZE`` bytes.
    :param identity: the four bytes of both ids, None for a VF: its ids
        always read as ones (PCIe 6.0, 9.3.4.1.1).
    """
    if len(header) < HEADER_SIZE or not header.strip(b"\xff"):
        return False
    return identity is None or header.startswith(identity)
