# SPDX-License-Identifier: Apache-2.0
"""Plan for scrubbing functions between two servers.

Partitions are removed and made again, and FPGA regions are blanked. Whole
functions, of a card or VFs, keep the data of the last server unless they
are reset.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.model import actions

# Technologies that assign whole functions. FPGA regions are blanked instead.
_WHOLE_FUNCTIONS = ("passthrough", "vf")
# Bytes that are read of configuration space: ids, command, status, class,
# header type (PCI Local Bus Specification, 6.1).
HEADER_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFunction:
    """A function that a server has released.

    ``driver`` is the host's own driver, empty for none and for those that
    hold functions for guests. ``is_resettable`` is True where the kernel
    can reset it without other functions.
    """

    address: str
    driver: str = ""
    is_resettable: bool = True


def list_functions(claim: model.Claim) -> tuple[str, ...]:
    """Return the functions of a claim to scrub, its slot first."""
    if claim.technology not in _WHOLE_FUNCTIONS or claim.region is not None:
        return ()
    return (claim.slot, *claim.members)


def plan(
    functions: Sequence[ReleasedFunction], rule: policy.Rule
) -> tuple[actions.Action, ...]:
    """Return the actions that scrub a server's functions.

    Without ``scrub`` in the rule, functions are reset that are resettable
    and have no driver of the host, as a driver does not expect a reset.
    With ``reset``, all are, and are unbound from their drivers meanwhile.
    The command is run last, once, with the first function and the host's
    driver bound.
    """
    resets = tuple(
        action for function in functions for action in _reset(function, rule)
    )
    if not rule.scrub_command or not functions:
        return resets
    first = functions[0].address
    return (
        *resets,
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
    unbind = actions.BindDriver(
        function=function.address, driver="", before=function.driver
    )
    if function.driver:
        yield unbind
    yield actions.ResetFunction(function=function.address)
    if function.driver:
        yield unbind.undo()


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
