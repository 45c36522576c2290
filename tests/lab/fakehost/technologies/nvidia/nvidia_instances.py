# SPDX-License-Identifier: Apache-2.0
"""MIG: the GPU instances of a card, and what NVML says of them.

Source: NVIDIA's MIG user guide (``nvidia-smi mig -lgip`` and ``-lgipp``).
The places of RTX PRO 6000 are those that its users published.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

# Return codes of NVML (nvml.h, nvmlReturn_t).
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
#: Compute instance profiles by slices: NVML_COMPUTE_INSTANCE_PROFILE_*.
COMPUTE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}


class NvmlError(Exception):
    """A call of NVML fails with ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKind:
    """A kind of GPU instance.

    ``number`` is nvml.h's NVML_GPU_INSTANCE_PROFILE_*, ``profile_id`` the
    id that a card gives it. ``memory`` is in GB and ``size`` in the
    units of ``starts``; ``limit`` is how many a card holds.
    """

    name: str
    number: int
    profile_id: int
    slices: int
    memory: int
    size: int
    starts: tuple[int, ...]
    limit: int


def _kind(
    name: str,
    number: int,
    profile_id: int,
    size: int,
    starts: range,
    limit: int | None = None,
) -> InstanceKind:
    slices, memory = name.removesuffix("+me").removesuffix("gb").split("g.")
    return InstanceKind(
        name=name,
        number=number,
        profile_id=profile_id,
        slices=int(slices),
        memory=int(memory),
        size=size,
        starts=tuple(starts),
        limit=len(starts) if limit is None else limit,
    )


A100_KINDS = (
    _kind("1g.5gb", 0, 19, 1, range(7)),
    _kind("1g.5gb+me", 7, 20, 1, range(7), 1),
    _kind("1g.10gb", 9, 15, 2, range(0, 8, 2)),
    _kind("2g.10gb", 1, 14, 2, range(0, 6, 2)),
    _kind("3g.20gb", 2, 9, 4, range(0, 8, 4)),
    _kind("4g.20gb", 3, 5, 4, range(1)),
    _kind("7g.40gb", 4, 0, 8, range(1)),
)
RTX_PRO_6000_KINDS = (
    _kind("1g.24gb", 0, 14, 3, range(0, 12, 3)),
    _kind("2g.48gb", 1, 5, 6, range(0, 12, 6)),
    _kind("4g.96gb", 3, 0, 12, range(1)),
)


@dataclass(kw_only=True)
class GpuInstance:
    """One GPU instance and the compute instances in it, by id."""

    id: int
    kind: InstanceKind
    start: int
    compute: dict[int, int] = field(default_factory=dict)

    def overlaps(self, kind: InstanceKind, start: int) -> bool:
        """Return whether an instance there would share a memory slice."""
        slices = range(self.start, self.start + self.kind.size)
        return not set(slices).isdisjoint(range(start, start + kind.size))


class Instances:
    """The GPU instances of one card."""

    def __init__(self, kinds: tuple[InstanceKind, ...]) -> None:
        self.kinds = kinds
        self.present: dict[int, GpuInstance] = {}

    def kind(self, name: str) -> InstanceKind:
        """Return the kind of that name; raises NvmlError."""
        return self._find(lambda kind: kind.name == name)

    def profile(self, profile_id: int) -> InstanceKind:
        """Return the kind with a card's profile id; raises NvmlError."""
        return self._find(lambda kind: kind.profile_id == profile_id)

    def numbered(self, number: int) -> InstanceKind:
        """Return the kind of an NVML number; raises NvmlError."""
        try:
            return self._find(lambda kind: kind.number == number)
        except NvmlError:
            raise NvmlError(NOT_SUPPORTED) from None

    def _find(self, is_match: object) -> InstanceKind:
        assert callable(is_match)
        for kind in self.kinds:
            if is_match(kind):
                return kind
        raise NvmlError(INVALID_ARGUMENT)

    def room(self, kind: InstanceKind) -> list[int]:
        """Return where one more of ``kind`` may begin."""
        same = [i for i in self.present.values() if i.kind == kind]
        if len(same) >= kind.limit:
            return []
        return [
            start
            for start in kind.starts
            if not any(i.overlaps(kind, start) for i in self.present.values())
        ]

    def create(self, kind: InstanceKind, start: int | None) -> GpuInstance:
        """Make an instance; ``start`` None takes the first place.

        Raises NvmlError INVALID_ARGUMENT or INSUFFICIENT_RESOURCES.
        """
        if start is not None and start not in kind.starts:
            raise NvmlError(INVALID_ARGUMENT)
        room = self.room(kind)
        if not room or (start is not None and start not in room):
            raise NvmlError(INSUFFICIENT_RESOURCES)
        number = next(n for n in itertools.count(1) if n not in self.present)
        made = GpuInstance(
            id=number, kind=kind, start=room[0] if start is None else start
        )
        self.present[number] = made
        return made

    def get(self, number: int) -> GpuInstance:
        """Return an instance; raises NvmlError NOT_FOUND."""
        if number not in self.present:
            raise NvmlError(NOT_FOUND)
        return self.present[number]
