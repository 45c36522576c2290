# SPDX-License-Identifier: Apache-2.0
"""Hosts with every technology once or twice, with few VFs each."""

from __future__ import annotations

import dataclasses

from nova_accel.config import policy
from tests.lab import fakehost
from tests.lab.fakehost.technologies import Card

T4 = "0000:3b:00.0"
A40, A40_MIXED = "0000:41:00.0", "0000:51:00.0"
L40S, L40S_MIXED = "0000:61:00.0", "0000:71:00.0"
A100_STATIC, A100_DYNAMIC = "0000:81:00.0", "0000:91:00.0"
A100_MDEV, A100_EQUAL = "0000:a1:00.0", "0000:a2:00.0"
BLACKWELL, BLACKWELL_DYNAMIC = "0000:b1:00.0", "0000:b2:00.0"
FLEX, MI25 = "0000:c1:00.0", "0000:d1:00.0"
WHOLE = "0000:e1:00.0"

#: A few types of each size: combinations of sizes find the errors.
SLICED = ("1Q", "2Q", "2A", "3Q", "4Q", "8Q", "12Q", "16Q", "24Q", "48Q")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A compute node; on ``dynamic`` cards the library creates and removes
    the GPU instances itself."""

    name: str
    cards: tuple[Card, ...]
    dynamic: tuple[str, ...] = ()

    @property
    def spec(self) -> fakehost.HostSpec:
        return fakehost.HostSpec(cards=self.cards)

    @property
    def rules(self) -> policy.DeviceRules:
        """Return what an operator would write for these modes."""
        return policy.parse_rules(
            f'{{"address": "{address}", "mig_instances": "dynamic"}}'
            for address in self.dynamic
        )


HOSTS = (
    Host(
        name="old",
        cards=(
            fakehost.Mtty(ports=7),
            fakehost.NvidiaGpu(
                address=T4,
                model="T4",
                types=("1Q", "2Q", "2B", "4Q", "4C", "8Q", "16Q"),
            ),
            fakehost.NvidiaGpu(
                address=A40,
                model="A40",
                enabled_vfs=4,
                total_vfs=4,
                types=("1Q", "2Q", "8Q", "12Q", "24Q", "24A", "48Q"),
            ),
            fakehost.PciCard(
                address=FLEX,
                vendor=0x8086,
                device=0x56C0,
                class_code=0x038000,
                driver="i915",
                total_vfs=3,
                enabled_vfs=3,
            ),
        ),
    ),
    Host(
        name="mixed",
        cards=(
            fakehost.NvidiaGpu(
                address=A40_MIXED,
                model="A40",
                enabled_vfs=4,
                total_vfs=4,
                mixed=True,
                types=("1Q", "4Q", "12Q", "16Q", "24Q", "48Q"),
            ),
            fakehost.NvidiaGpu(
                address=L40S_MIXED,
                model="L40S",
                enabled_vfs=6,
                total_vfs=6,
                interface="vfio",
                mixed=True,
                types=SLICED,
            ),
            fakehost.PciCard(
                address=MI25,
                vendor=0x1002,
                device=0x6860,
                class_code=0x038000,
                driver="gim",
                total_vfs=2,
                enabled_vfs=2,
                vf_device=0x686C,
                vf_offset=16,
                takes_vf_count=False,
            ),
        ),
    ),
    Host(
        name="new",
        cards=(
            fakehost.NvidiaGpu(
                address=L40S,
                model="L40S",
                enabled_vfs=5,
                total_vfs=5,
                interface="vfio",
                types=SLICED,
            ),
            fakehost.NvidiaGpu(
                address=A100_STATIC,
                model="A100",
                enabled_vfs=4,
                total_vfs=4,
                interface="vfio",
                mig=True,
                instances=(("1g.5gb", 0), ("1g.5gb", 1), ("3g.20gb", 4)),
            ),
            fakehost.NvidiaGpu(
                address=BLACKWELL,
                model="RTXPRO6000",
                enabled_vfs=6,
                total_vfs=6,
                interface="vfio",
                mig=True,
                instances=(("1g.24gb", 0), ("1g.24gb", 3), ("2g.48gb", 6)),
            ),
            fakehost.PciCard(
                address=WHOLE,
                vendor=0x1002,
                device=0x7340,
                class_code=0x030000,
            ),
        ),
    ),
    Host(
        name="dynamic",
        cards=(
            fakehost.NvidiaGpu(
                address=A100_DYNAMIC,
                model="A100",
                enabled_vfs=7,
                total_vfs=7,
                interface="vfio",
                mig=True,
            ),
            fakehost.NvidiaGpu(
                address=A100_EQUAL,
                model="A100",
                enabled_vfs=4,
                total_vfs=4,
                interface="vfio",
            ),
        ),
        dynamic=(A100_DYNAMIC,),
    ),
    Host(
        name="dynamic-mdev",
        cards=(
            fakehost.NvidiaGpu(
                address=A100_MDEV,
                model="A100",
                enabled_vfs=4,
                total_vfs=4,
                mig=True,
                types=("1-5C", "2-10C", "3-20C", "7-40C", "4C"),
            ),
            fakehost.NvidiaGpu(
                address=BLACKWELL_DYNAMIC,
                model="RTXPRO6000",
                enabled_vfs=6,
                total_vfs=6,
                interface="vfio",
                mig=True,
            ),
        ),
        dynamic=(A100_MDEV, BLACKWELL_DYNAMIC),
    ),
)
