# SPDX-License-Identifier: Apache-2.0
"""Plan of how a function is scrubbed between two servers.

Partitions are unmade and made anew, and FPGA regions blanked. Functions
that are given as they are, a card's own or VFs, keep what the last server
left in them unless they are reset.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.model import actions

# Technologies whose functions are given as they are, and go back as they
# are; regions of FPGAs have a bitstream for that.
_PLAIN = ("passthrough", "vf")
# All that is read of configuration space: ids, command, status, class,
# header type (PCI Local Bus Specification, 6.1).
HEADER_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFunction:
    """A function that a server has given back.

    ``driver`` is the host's own that has it, empty for none and for those
    that hold functions for guests. ``is_resettable`` tells whether the
    kernel can reset it without its neighbours.
    """

    address: str
    driver: str = ""
    is_resettable: bool = True


def addresses(claim: model.Claim) -> tuple[str, ...]:
    """Return the functions of a claim that are to be scrubbed.

    That it stands for comes first.
    """
    if claim.technology not in _PLAIN or claim.region is not None:
        return ()
    return (claim.slot, *claim.members)


def plan(
    functions: Sequence[ReleasedFunction], rule: policy.Rule
) -> tuple[actions.Action, ...]:
    """Return what is done to a server's functions after it.

    Where the line says nothing, functions are reset that can be and that
    no driver of the host has: one that works with a function would not
    know what becomes of it. Where the line says ``reset``, each is, and
    taken from its driver meanwhile. The command comes last, once, for the
    first function: the host's driver is there for it.
    """
    found = tuple(
        action for function in functions for action in _reset(function, rule)
    )
    if not rule.scrub_command or not functions:
        return found
    first = functions[0].address
    return (
        *found,
        actions.RunScrub(command=rule.scrub_command, function=first),
    )


def _reset(
    function: ReleasedFunction, rule: policy.Rule
) -> Iterator[actions.Action]:
    is_free = function.is_resettable and not function.driver
    if rule.scrub == policy.NONE or not (
        rule.scrub == policy.RESET or is_free
    ):
        return
    unbound = actions.BindDriver(
        function=function.address, driver="", before=function.driver
    )
    if function.driver:
        yield unbound
    yield actions.ResetFunction(function=function.address)
    if function.driver:
        yield unbound.undo()


def is_answer(header: bytes, identity: bytes | None) -> bool:
    """Return whether the start of configuration space is an answer.

    What does not answer reads as ones.

    :param header: the first ``HEADER_SIZE`` bytes.
    :param identity: the four bytes of both ids, None for a VF: its own ids
        read as ones where it is well (PCIe 6.0, 9.3.4.1.1).
    """
    if len(header) < HEADER_SIZE or not header.strip(b"\xff"):
        return False
    return identity is None or header.startswith(identity)
