# SPDX-License-Identifier: Apache-2.0
"""vGPU types of a few cards, as their host driver shows them.

Numbers and names: public listings of real hosts (T4 with driver 510, A40
and A100 with driver 550, L40S with 550); they change between driver
releases, and those of RTX PRO 6000, and A100's 1-10C, are made up. Places:
computed here, in the driver's own manner (_kvgpumgrSetHeterogeneousResources
in NVIDIA's open GPU kernel modules), from the size alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.lab.fakehost.buses.mdev import MdevType
from tests.lab.fakehost.technologies.nvidia.nvidia_instances import (
    A100_KINDS,
    RTX_PRO_6000_KINDS,
    InstanceKind,
)

#: Per series: heads, frame rate limit, largest resolution.
SERIES = {
    "A": (1, 60, "1280x1024"),
    "B": (4, 45, "5120x2880"),
    "C": (1, 60, "4096x2160"),
    "Q": (4, 60, "7680x4320"),
}
MIB_PER_GB = 1024
#: MAX_VGPU_DEVICES_PER_PGPU, of time-sliced vGPUs.
MOST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuType:
    """One type; ``framebuffer`` in MiB.

    ``size`` is its length in the card's region of GiB. ``mixed`` and
    ``equal`` are its places in the two modes, in the driver's order.
    ``instance`` is the GPU instance it runs in ("" for time-sliced
    types), ``per_instance`` how many of them share one.
    """

    number: int
    name: str
    series: str
    framebuffer: int
    max_instance: int
    size: int = 0
    mixed: tuple[int, ...] = ()
    equal: tuple[int, ...] = ()
    instance: str = ""
    per_instance: int = 1

    @property
    def short(self) -> str:
        """Return the part after the card: ``4Q``, ``1-5C``."""
        return self.name.rpartition(" ")[2].partition("-")[2]

    def mdev_type(self) -> MdevType:
        """Return what the driver registers with the mdev core."""
        heads, limit, resolution = SERIES[self.series]
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
    """A card; ``total_vfs`` 0 means its mdevs hang off the PF.

    ``denied`` are places that types of 1 GiB never get under mixed sizes,
    ``aligned`` is whether every size has the same places in both modes
    (Blackwell).
    """

    device: int
    subsystem: int
    framebuffer: int
    most: int
    prefix: str
    total_vfs: int
    numbers: dict[int, str]
    kinds: tuple[InstanceKind, ...] = ()
    denied: frozenset[int] = frozenset()
    aligned: bool = False
    shares_instances: bool = False
    product: str = field(default="NVIDIA GPU")

    @property
    def region(self) -> int:
        """Return the length of the region that vGPUs are placed in."""
        return self.framebuffer // MIB_PER_GB

    def types(self) -> tuple[VgpuType, ...]:
        """Return the card's types by number."""
        return tuple(
            self._backed(number, short)
            if "-" in short
            else self._sliced(number, short)
            for number, short in sorted(self.numbers.items())
        )

    def _sliced(self, number: int, short: str) -> VgpuType:
        size = int(short.rstrip("4").rstrip("ABCQ"))
        most = min(self.most, self.region // size)
        equal = tuple(range(0, most * size, size))
        return VgpuType(
            number=number,
            name=f"{self.prefix}-{short}",
            series=short.rstrip("4")[-1],
            framebuffer=size * MIB_PER_GB,
            max_instance=most,
            size=size,
            mixed=equal if self.aligned else self._mixed(size),
            equal=equal,
        )

    def _mixed(self, size: int) -> tuple[int, ...]:
        """Return places that leave room for larger sizes between them.

        The region is cut in pairs; of each the first place is at its
        beginning and the second place at its end.
        """
        count = 1
        while count * 2 <= MOST and count * 2 * size <= self.region:
            count *= 2
        if count == 1:
            return (0,)
        pairs, places = count // 2, []
        for pair in range(pairs):
            end = (pair + 1) * self.region // pairs
            places += [pair * self.region // pairs, end - size]
        refused = self.denied if size == 1 else frozenset()
        return tuple(place for place in places if place not in refused)

    def _backed(self, number: int, short: str) -> VgpuType:
        slices, _, rest = short.partition("-")
        size = int("".join(c for c in rest if c.isdigit()))
        series, extra = rest.lstrip("0123456789")[0], rest[-2:]
        kind = self._kind(int(slices), size, "+me" if extra == "ME" else "")
        share = max(1, kind.memory // size) if self.shares_instances else 1
        return VgpuType(
            number=number,
            name=f"{self.prefix}-{short}",
            series=series,
            framebuffer=size * MIB_PER_GB,
            max_instance=kind.limit * share,
            instance=kind.name,
            per_instance=share,
        )

    def _kind(self, slices: int, size: int, media: str) -> InstanceKind:
        fitting = [
            kind
            for kind in self.kinds
            if kind.slices == slices
            and kind.name.endswith("+me") == bool(media)
        ]
        exact = [kind for kind in fitting if kind.memory == size]
        return (exact or fitting)[0]


def _run(first: int, *names: str) -> dict[int, str]:
    return dict(enumerate(names, first))


MODELS = {
    "T4": Model(
        device=0x1EB8,
        subsystem=0x12A2,
        framebuffer=16 * MIB_PER_GB,
        most=16,
        prefix="GRID T4",
        product="Tesla T4",
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
        most=MOST,
        prefix="NVIDIA A40",
        product="NVIDIA A40",
        total_vfs=32,
        denied=frozenset({8, 32}),
        numbers={
            **_run(555, "1B", "2B"),
            **_run(557, "1Q", "2Q", "3Q", "4Q", "6Q"),
            **_run(562, "8Q", "12Q", "16Q", "24Q", "48Q"),
            **_run(567, "1A", "2A", "3A", "4A", "6A"),
            **_run(572, "8A", "12A", "16A", "24A", "48A"),
        },
    ),
    "A100": Model(
        device=0x20F1,
        subsystem=0x145F,
        framebuffer=40 * MIB_PER_GB,
        most=MOST,
        prefix="GRID A100",
        product="NVIDIA A100-PCIE-40GB",
        total_vfs=16,
        kinds=A100_KINDS,
        numbers={
            **_run(468, "4C", "5C", "8C", "10C", "20C", "40C"),
            **_run(474, "1-5C", "2-10C", "3-20C", "4-20C", "7-40C"),
            **_run(706, "1-5CME", "1-10C"),
        },
    ),
    "L40S": Model(
        device=0x26B9,
        subsystem=0x1851,
        framebuffer=48 * MIB_PER_GB,
        most=MOST,
        prefix="NVIDIA L40S",
        product="NVIDIA L40S",
        total_vfs=32,
        denied=frozenset(n for n in range(48) if n % 6 in (2, 3)),
        numbers={
            **_run(1145, "1B", "2B", "1Q", "2Q", "3Q", "4Q", "6Q"),
            **_run(1152, "8Q", "12Q", "16Q", "24Q", "48Q"),
            **_run(1157, "1A", "2A", "3A", "4A", "6A"),
            **_run(1162, "8A", "12A", "16A", "24A", "48A"),
            2164: "3B",
        },
    ),
    "RTXPRO6000": Model(
        device=0x2BB5,
        subsystem=0x204E,
        framebuffer=96 * MIB_PER_GB,
        most=MOST,
        prefix="NVIDIA RTX Pro 6000 Blackwell DC",
        product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        total_vfs=48,
        kinds=RTX_PRO_6000_KINDS,
        aligned=True,
        shares_instances=True,
        numbers={
            **_run(1530, "3Q", "4Q", "6Q", "8Q", "12Q", "16Q", "24Q"),
            **_run(1537, "32Q", "48Q", "96Q"),
            **_run(1546, "1-2Q", "1-8Q", "1-12Q", "1-24Q"),
            **_run(1550, "2-12Q", "2-24Q", "2-48Q", "2-24C"),
            **_run(1554, "4-32Q", "4-48Q", "4-96Q"),
        },
    ),
}
