# SPDX-License-Identifier: Apache-2.0
"""Technologies that servers can have, one row for each."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.spawn import test_typed_vfs
from tests.functional.nova.support import harness, releases
from tests.lab import fakehost

Specs = Callable[[Any], dict[str, str]]
_NOTHING: Mapping[str, Any] = {}
_A = "_A"
# Names of technologies, or "all": every matrix runs with these.
_VARIABLE = "NOVA_ACCEL_TECHNOLOGIES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Technology:
    """The cards of a host, and two flavors that want different things.

    ``small`` and ``other`` return their extra specs for a test; both fit on
    one host at a time.
    """

    name: str
    cards: tuple[Any, ...]
    small: Specs
    other: Specs
    settings: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: _NOTHING
    )


def _gpu(slot: int) -> fakehost.PciCard:
    return dataclasses.replace(
        harness.GPU_CARDS[0],
        address=f"0000:{slot:02x}:00.0",
        group=slot,
        multifunction=False,
    )


def _vfs(count: int) -> Specs:
    def specs(test: Any) -> dict[str, str]:
        (trait,) = test.profiles(test_typed_vfs.S7150)
        return {
            "resources_A:VGPU": str(count),
            f"trait_A:{trait}": "required",
        }

    return specs


def _gpus(*suffixes: str) -> Specs:
    def specs(_: Any) -> dict[str, str]:
        extra_specs = {"group_policy": "none"}
        for suffix in suffixes:
            extra_specs |= harness.whole_gpu_group(suffix)
        return extra_specs

    return specs


def _region(function: str) -> Specs:
    def specs(test: Any) -> dict[str, str]:
        return test_fpga.Fpga.region_specs(
            test, test_fpga.ANY, test.image_of(function)
        )

    return specs


MDEV = Technology(
    name="mdev",
    cards=harness.TWO_T4,
    small=lambda _: (
        harness.vgpu_group(_A, "4Q") | {"accelerator:display": "on"}
    ),
    other=lambda _: harness.vgpu_group(_A, "8Q"),
)
TYPED_VF = Technology(
    name="typed_vf",
    cards=(
        test_typed_vfs.CARD,
        dataclasses.replace(test_typed_vfs.CARD, address="0000:4d:00.0"),
    ),
    small=lambda _: test_typed_vfs.typed_group("8Q"),
    other=lambda _: test_typed_vfs.typed_group("4Q"),
)
PLAIN_VF = Technology(
    name="plain_vf",
    cards=(dataclasses.replace(test_typed_vfs.AMD, enabled_vfs=4),),
    small=_vfs(1),
    other=_vfs(2),
)
WHOLE = Technology(
    name="whole",
    cards=(_gpu(0x71), _gpu(0x72), _gpu(0x73)),
    small=_gpus("_A"),
    other=_gpus("_A", "_B"),
)
REGION = Technology(
    name="region",
    cards=(
        test_fpga.PAC,
        dataclasses.replace(test_fpga.PAC, address="0000:5f:00.0"),
    ),
    small=_region(test_fpga.RED),
    other=_region(test_fpga.BLUE),
    settings={"bitstream_owners": ["trusted"], "program_timeout": 3},
)
ALL = (MDEV, TYPED_VF, PLAIN_VF, WHOLE, REGION)


def matrix(
    case: type, *usual: Technology, also: tuple[Technology, ...] = ()
) -> dict[str, type]:
    """Return a test case for each technology, named after both.

    :param usual: those of a run without NOVA_ACCEL_TECHNOLOGIES; a Nova under
        eventlet, whose driver is called in the same way, runs with the
        first.
    :param also: those that are marked "long".
    """
    return {
        name: type(
            name,
            (case,),
            {
                "__doc__": f"{case.__doc__} It has: {technology.name}.",
                "__module__": case.__module__,
                "__test__": True,
                "technology": technology,
                "pytestmark": [pytest.mark.long] * (technology in also),
            },
        )
        for technology in _chosen((*usual, *also))
        for name in [f"{case.__name__}_{technology.name}"]
    }


def _chosen(usual: tuple[Technology, ...]) -> tuple[Technology, ...]:
    setting = os.environ.get(_VARIABLE, "")
    if setting == "all":
        return ALL
    if setting:
        by_name = {technology.name: technology for technology in ALL}
        return tuple(by_name[name] for name in setting.split(","))
    return usual if releases.is_on_threads() else usual[:1]
