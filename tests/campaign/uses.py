# SPDX-License-Identifier: Apache-2.0
"""Operations of users on a server that is well, after the faults."""

from typing import Any

from nova.compute import vm_states

from tests.campaign import kinds
from tests.functional.nova.support.technologies import Technology


def list_uses(
    technology: Technology, state: str
) -> list[tuple[str, Any, str]]:
    """Return what a user does to a server, and its states after that.

    The state is empty where it depends on the time before.
    """
    again = [
        ("os-stop", None, vm_states.STOPPED),
        ("os-start", None, vm_states.ACTIVE),
        ("reboot", {"type": "HARD"}, vm_states.ACTIVE),
    ]
    # libvirt can't unplug several functions of one slot.
    if technology is not kinds.PAIRS:
        again += [
            ("suspend", None, vm_states.SUSPENDED),
            ("resume", None, vm_states.ACTIVE),
        ]
    first: dict[str, list[tuple[str, Any, str]]] = {
        vm_states.ACTIVE: [],
        vm_states.STOPPED: [("os-start", None, vm_states.ACTIVE)],
        vm_states.PAUSED: [("unpause", None, vm_states.ACTIVE)],
        vm_states.SUSPENDED: [("resume", None, vm_states.ACTIVE)],
        vm_states.RESCUED: [("unrescue", None, vm_states.ACTIVE)],
    }
    # A server that was stopped before is stopped after it.
    if state == vm_states.RESIZED:
        return [("confirmResize", None, "")]
    return [*first[state], *again] if state in first else []
