# SPDX-License-Identifier: Apache-2.0
"""The phrases of corrections are read back as the values that made them."""

import pytest

from nova_accel.config import remedy
from nova_accel.inventory import printed_remedies

CARD, VF = "0000:41:00.0", "0000:41:00.4"
ALL: tuple[remedy.Remedy, ...] = (
    remedy.SpecLine(address=CARD, use="passthrough"),
    remedy.SpecLine(address=CARD, num_vfs=32),
    remedy.SpecLine.build(
        {"address": CARD, "use": "passthrough", "scrub": "none"}
    ),
    remedy.SpecLine.build(
        {
            "address": CARD,
            "num_vfs": 2,
            "profiles": ["A40-*Q", 'a "b" \\ {c}'],
            "max_instances": {"A40-8Q": 4, "A40-4Q": 2},
            "vgpu_params": "a=b,c=/d",
            "blank": "/etc/nova/blank image.gbs",
        }
    ),
    remedy.EnableSriov(function=CARD),
    remedy.BindFunction(function=VF, driver="vfio-pci"),
    remedy.BindVfs(function=CARD, before="vfio-pci", driver="nvidia"),
    remedy.BindVfs(function=CARD, before="", driver="nvidia"),
    remedy.WriteAttribute(function=CARD, name="sriov_numvfs", value="0"),
    remedy.LoadModule(module="gim"),
    remedy.InstallModule(package="AMD's host driver", module="gim"),
)


@pytest.mark.parametrize("step", ALL, ids=str)
def test_a_phrase_is_read_back(step: remedy.Remedy) -> None:
    assert list(
        printed_remedies.find(f"is not offered: {step}; see the log")
    ) == [step]


def test_steps_follow_one_another_and_ways_do_not() -> None:
    first, second, third = (
        remedy.BindFunction(function=VF, driver="vfio-pci"),
        ALL[0],
        remedy.LoadModule(module="gim"),
    )
    text = f"{first}, then write {second}, or {third}"
    assert list(printed_remedies.find_alternatives(text)) == [
        (first, second),
        (third,),
    ]


def test_a_text_without_phrases_has_no_remedy() -> None:
    assert not list(
        printed_remedies.find("bind it to nvidia, or write a line")
    )
