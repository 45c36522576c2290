# SPDX-License-Identifier: Apache-2.0
"""Rules for the actions that a driver planned."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import get_args

from nova_accel.conformance.findings import Finding
from nova_accel.model import actions

ACTIONS: tuple[type, ...] = get_args(actions.Action)
# Fields of actions that name a function or a parent of mdevs.
_ADDRESS_FIELDS = ("card", "function", "gpu", "parent", "slot")
# Removed together with the partition, or undone by libvirt.
_NEEDS_NO_RELEASE = (actions.SetVgpuParams, actions.BindDriver)


def check_actions(
    plan: object, where: str, own: Collection[str]
) -> Iterator[Finding]:
    """Yield findings about a list of actions.

    :param own: the functions, parents and slots that may be changed.
    """
    if not isinstance(plan, Sequence) or isinstance(plan, str):
        yield Finding(
            check="plan", where=where, reason=f"{plan!r} is no sequence"
        )
        return
    for action in plan:
        if not isinstance(action, ACTIONS):
            yield Finding(
                check="plan", where=where, reason=f"{action!r} is no action"
            )
            continue
        for name in _ADDRESS_FIELDS:
            place = getattr(action, name, None)
            if isinstance(place, str) and place not in own:
                yield Finding(
                    check="plan",
                    where=where,
                    reason=f"would {action}: {place} is not of the device",
                )


def check_undone(
    prepare: Sequence[actions.Action],
    release: Sequence[actions.Action],
    where: str,
) -> Iterator[Finding]:
    """Yield prepared actions that the release does not undo in order."""
    order = []
    for action in prepare:
        undo = action.undo()
        if undo is None or isinstance(action, _NEEDS_NO_RELEASE):
            continue
        positions = [
            n for n, step in enumerate(release) if _is_undo(step, undo)
        ]
        if not positions:
            yield Finding(
                check="release",
                where=where,
                reason=f"leaves behind what was prepared ({action}); return"
                f" {undo!r}",
            )
        order += positions[:1]
    if order != sorted(order, reverse=True):
        yield Finding(
            check="release",
            where=where,
            reason="undoes in another order than backwards; what was made"
            " last goes first",
        )


def _is_undo(action: actions.Action, undo: actions.Action) -> bool:
    """Return whether an action is equivalent to an undo."""
    if isinstance(action, actions.DestroyInstance) and isinstance(
        undo, actions.DestroyInstance
    ):
        return dataclasses.replace(undo, start=None) == dataclasses.replace(
            action, start=None
        ) and action.start in (None, undo.start)
    return action == undo
