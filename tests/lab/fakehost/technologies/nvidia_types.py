# SPDX-License-Identifier: Apache-2.0
"""vGPU types of two cards, as their mdev type directories show them.

Numbers and names: public listings of real hosts (T4 with driver 510, A40
with driver 550); they change between driver releases.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.fakehost.mdev import MdevType

#: Per series: heads, frame rate limit, largest resolution.
SERIES = {
    "A": (1, 60, "1280x1024"),
    "B": (4, 45, "5120x2880"),
    "C": (1, 60, "4096x2160"),
    "Q": (4, 60, "7680x4320"),
}
MIB_PER_GB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuType:
    """One type; ``framebuffer`` in MiB."""

    number: int
    name: str
    framebuffer: int
    max_instance: int

    def mdev_type(self) -> MdevType:
        """Return what the driver registers with the mdev core."""
        series = self.name.rstrip("0123456789")[-1]
        heads, limit, resolution = SERIES[series]
        return MdevType(
            suffix=str(self.number),
            name=self.name,
            description=(
                f"num_heads={heads}, frl_config={limit}, "
                f"framebuffer={self.framebuffer}M, "
                f"max_resolution={resolution}, "
                f"max_instance={self.max_instance}"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A card; ``total_vfs`` 0 means its mdevs hang off the PF."""

    device: int
    subsystem: int
    framebuffer: int
    most: int
    prefix: str
    total_vfs: int
    numbers: dict[int, str]

    def types(self) -> tuple[VgpuType, ...]:
        """Return the card's types by number."""
        found = []
        for number, short in sorted(self.numbers.items()):
            size = int(short.rstrip("4").rstrip("ABCQ")) * MIB_PER_GB
            found.append(
                VgpuType(
                    number=number,
                    name=f"{self.prefix}-{short}",
                    framebuffer=size,
                    max_instance=min(self.most, self.framebuffer // size),
                )
            )
        return tuple(found)


def _run(first: int, *names: str) -> dict[int, str]:
    return dict(enumerate(names, first))


MODELS = {
    "T4": Model(
        device=0x1EB8,
        subsystem=0x12A2,
        framebuffer=16 * MIB_PER_GB,
        most=16,
        prefix="GRID T4",
        total_vfs=0,
        numbers={
            **_run(222, "1B", "2B", "2B4"),
            **_run(225, "1A", "2A", "4A", "8A", "16A"),
            **_run(230, "1Q", "2Q", "4Q", "8Q", "16Q"),
            **_run(252, "1B4"),
            **_run(319, "4C", "8C", "16C"),
        },
    ),
    "A40": Model(
        device=0x2235,
        subsystem=0x145A,
        framebuffer=48 * MIB_PER_GB,
        most=32,
        prefix="NVIDIA A40",
        total_vfs=32,
        numbers={
            **_run(555, "1B", "2B"),
            **_run(557, "1Q", "2Q", "3Q", "4Q", "6Q"),
            **_run(562, "8Q", "12Q", "16Q", "24Q", "48Q"),
            **_run(567, "1A", "2A", "3A", "4A", "6A"),
            **_run(572, "8A", "12A", "16A", "24A", "48A"),
        },
    ),
}
