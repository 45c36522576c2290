# SPDX-License-Identifier: Apache-2.0
"""Plan of moves as text."""

from collections.abc import Iterator

from nova_accel.inventory import wording
from placement_sync.planning.defragmentation import move_plan

_MS_PER_S = 1000
_NO_PAUSE = (
    "How long each guest pauses is not known: name the throughput between"
    " hosts with --link"
)
_UNPROVEN = "the time was over before all shorter plans were tried"


def describe_gain(gain: move_plan.PlannedGain) -> str:
    """Return what a plan gains."""
    text = (
        f"{gain.profile} fits {_times(gain.after)} instead of"
        f" {_times(gain.before)}"
    )
    if gain.largest_after != gain.largest_before:
        text += (
            f"; the largest profile is {gain.largest_after or 'none'} instead"
            f" of {gain.largest_before or 'none'}"
        )
    return text


def describe_move(move: move_plan.PlannedMove) -> str:
    """Return a move in one line."""
    pause = ""
    if move.pause_ms is not None:
        pause = f", pauses up to {move.pause_ms / _MS_PER_S:.1f} s"
    return (
        f"{move.kind} {move.name} ({move.server}), {move.profile}:"
        f" {move.source} to {move.target}, {_count_mb(move)} MB{pause}"
    )


def as_text(plan: move_plan.MovePlan) -> str:
    """Return a plan for people."""
    return "".join(f"{line}\n" for line in _list_lines(plan))


def _list_lines(plan: move_plan.MovePlan) -> Iterator[str]:
    gain = plan.gain
    if not plan.moves:
        yield f"{gain.profile} fits {_times(gain.before)}: no move is needed"
        return
    total = sum(map(_count_mb, plan.moves))
    shortest = "no plan has fewer" if plan.is_shortest else _UNPROVEN
    yield f"Gain: {describe_gain(gain)}; room on {', '.join(gain.cards)}"
    yield f"Moves: {len(plan.moves)} ({shortest}), {total} MB to send"
    for number, move in enumerate(plan.moves, start=1):
        yield f"  {number}. {describe_move(move)}"
    if any(m.pause_ms is None and m.framebuffer_mb for m in plan.moves):
        yield _NO_PAUSE
    yield "Usage and quotas stay as they are"


def _times(number: int) -> str:
    return wording.count_of(number, "time")


def _count_mb(move: move_plan.PlannedMove) -> int:
    """Return what a move sends between hosts, without local disks."""
    return move.memory_mb + move.framebuffer_mb
