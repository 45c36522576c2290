# SPDX-License-Identifier: Apache-2.0
"""Technologies of the campaign: those of the harness, and further ones."""

import dataclasses
from typing import Any

from tests.functional.nova.fpga import test_fpga, test_tools
from tests.functional.nova.support import harness, technologies
from tests.functional.nova.support.technologies import Technology
from tests.lab import fakehost

_A40, _A40_B = "0000:25:00.0", "0000:26:00.0"
_A100, _A100_B = "0000:b1:00.0", "0000:b2:00.0"
_DISKS = ("0000:81:00.0", "0000:82:00.0", "0000:85:00.0")
_DRIVES, _DRIVES_B = "0000:83:00.0", "0000:84:00.0"
_ALVEO, _ALVEO_B = "0000:5e:00.0", "0000:5f:00.0"
_QAT, _QAT_B = "0000:f3:00.0", "0000:f7:00.0"


def _vgpus(model: str, small: str, other: str) -> dict[str, Any]:
    """Return two flavors with a vGPU of a model's types."""

    def group(shape: str) -> dict[str, str]:
        size = int(shape.rsplit("-", maxsplit=1)[-1].rstrip("ABCQ")) * 1024
        trait = f"CUSTOM_VGPU_NVIDIA_{model}_{shape}".replace("-", "_")
        return {
            "resources_A:VGPU": "1",
            "resources_A:CUSTOM_GPU_MEMORY_MB": str(size),
            f"trait_A:{trait}": "required",
        }

    return {
        "small": lambda _: group(small),
        "other": lambda _: group(other),
    }


def _counted(card: str, resource_class: str) -> dict[str, Any]:
    """Return two flavors with one and two of what a card is counted in."""

    def group(test: Any, count: int) -> dict[str, str]:
        prefix = "CUSTOM_ACCELERATOR_"
        trait = min(
            trait
            for trait in test.traits(card)
            if trait.startswith((f"{prefix}VF_", f"{prefix}PCI_"))
        )
        specs = {"group_policy": "none"}
        for suffix in ("_A", "_B")[:count]:
            specs |= {
                f"resources{suffix}:{resource_class}": "1",
                f"trait{suffix}:{trait}": "required",
            }
        return specs

    return {
        "small": lambda test: group(test, 1),
        "other": lambda test: group(test, 2),
    }


def _lines(*cards: str, **fields: Any) -> dict[str, Any]:
    """Return settings with a ``device_spec`` line for each card."""
    words = "".join(f', "{k}": "{v}"' for k, v in fields.items())
    return {"device_spec": [f'{{"address": "{c}"{words}}}' for c in cards]}


MDEV_ON_VF = Technology(
    name="mdev_on_vf",
    cards=tuple(
        fakehost.NvidiaGpu(address=card, model="A40", enabled_vfs=4)
        for card in (_A40, _A40_B)
    ),
    **_vgpus("A40", "8Q", "4Q"),
)
#: GPU instances that a boot script has made: NVML is not read here.
MIG = Technology(
    name="mig",
    cards=tuple(
        fakehost.NvidiaGpu(
            address=card,
            model="A100",
            interface="vfio",
            total_vfs=4,
            enabled_vfs=4,
            mig=True,
            instances=(("2g.10gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)),
        )
        for card in (_A100, _A100_B)
    ),
    **_vgpus("A100", "2-10C", "3-20C"),
)
NVME = Technology(
    name="nvme",
    cards=tuple(fakehost.NvmeCard(address=disk) for disk in _DISKS),
    settings=_lines(*_DISKS, use="passthrough", scrub="reset"),
    **_counted(_DISKS[0], "CUSTOM_NVME"),
)
NVME_VF = Technology(
    name="nvme_vf",
    cards=tuple(
        fakehost.NvmeCard(address=c, total_vfs=2) for c in (_DRIVES, _DRIVES_B)
    ),
    settings={
        "device_spec": [
            f'{{"address": "{card}", "use": "vf", "num_vfs": 2}}'
            for card in (_DRIVES, _DRIVES_B)
        ]
    },
    **_counted(_DRIVES, "CUSTOM_NVME_VF"),
)
QAT = Technology(
    name="qat",
    cards=tuple(
        fakehost.QatCard(address=c, total_vfs=2, enabled=True, vf_driver="")
        for c in (_QAT, _QAT_B)
    ),
    **_counted(_QAT, "CUSTOM_QAT_VF"),
)

#: Cards of two functions that are reset together.
PAIRS = Technology(
    name="pairs",
    cards=(
        *harness.BUS_RESET_CARDS,
        *(
            dataclasses.replace(
                card,
                address=card.address.replace(":71:", ":73:"),
                port=card.port.replace(":01.", ":03."),
                group=43,
            )
            for card in harness.BUS_RESET_CARDS
        ),
    ),
    small=technologies.WHOLE.small,
    other=technologies.WHOLE.other,
)


def _xclbin(function: str) -> Any:
    def specs(test: Any) -> dict[str, str]:
        image = test_tools.XrtSmi.xclbin(test, function)
        return test_fpga.Fpga.region_specs(test, test_tools.XrtSmi.ANY, image)

    return specs


ALVEO = Technology(
    name="alveo",
    cards=tuple(
        fakehost.AlveoCard(address=card) for card in (_ALVEO, _ALVEO_B)
    ),
    small=_xclbin(test_fpga.RED),
    other=_xclbin(test_fpga.BLUE),
    settings=technologies.REGION.settings,
)
#: Regions that are blanked when their server is gone.
BLANKED = dataclasses.replace(technologies.REGION, name="blanked_region")
BLANK, BLANK_INTERFACE = test_fpga.NLB0, test_fpga.INTERFACE
#: Technologies whose loads of regions are watched.
FPGAS = (technologies.REGION.name, ALVEO.name, BLANKED.name)
#: A host with several kinds of cards.
MIXED = Technology(
    name="mixed",
    cards=(
        harness.TWO_T4[0],
        technologies.WHOLE.cards[0],
        *QAT.cards[:1],
        *technologies.TYPED_VF.cards[:1],
    ),
    small=technologies.MDEV.small,
    other=lambda test: (
        technologies.TYPED_VF.small(test)
        | harness.whole_gpu_group("_B")
        | {"group_policy": "none"}
    ),
)
#: Two cards on each host: a function soon has its next holder.
ALL = (
    technologies.MDEV,
    technologies.TYPED_VF,
    dataclasses.replace(
        technologies.PLAIN_VF,
        cards=(
            dataclasses.replace(technologies.PLAIN_VF.cards[0], enabled_vfs=2),
        ),
    ),
    dataclasses.replace(
        technologies.WHOLE, cards=technologies.WHOLE.cards[:2]
    ),
    technologies.REGION,
    BLANKED,
    MDEV_ON_VF,
    MIG,
    NVME,
    NVME_VF,
    QAT,
    ALVEO,
    PAIRS,
    MIXED,
)
#: Those whose policy says that functions keep what they hold.
KEPT = (technologies.REGION.name, ALVEO.name)
#: Those whose VFs hold vGPUs, which are made empty.
TYPED = (technologies.TYPED_VF.name, MIG.name)
