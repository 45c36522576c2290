# SPDX-License-Identifier: Apache-2.0
"""One server gets all GPUs and all NVSwitches of its host (HGX H100)."""

import json
from typing import Any

import fixtures
import pytest
from placement.tests.functional.fixtures import placement

from tests.functional.nova.support import harness
from tests.lab import fakehost

# Releases before it have no such option.
pytest.importorskip("placement.conf.workarounds")

# Buses of a recorded HGX H100: eight GPUs and four NVSwitches.
BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
SWITCH_BUSES = (0x07, 0x08, 0x09, 0x0A)
SWITCH_CLASS = "CUSTOM_PCI_10DE_22A3"


def cards(
    buses: tuple[int, ...], device: int, code: int
) -> tuple[fakehost.PciCard, ...]:
    return tuple(
        fakehost.PciCard(
            address=f"0000:{bus:02x}:00.0",
            vendor=0x10DE,
            device=device,
            class_code=code,
            driver="vfio-pci",
            group=bus,
        )
        for bus in buses
    )


GPUS = cards(BUSES, 0x2330, 0x030200)
SWITCHES = cards(SWITCH_BUSES, 0x22A3, 0x068000)
LINE = json.dumps(
    {"vendor_id": "10de", "product_id": "22a3", "use": "passthrough"}
)


def group(suffix: str, resource_class: str, trait: str) -> dict[str, str]:
    return {
        f"resources{suffix}:{resource_class}": "1",
        f"trait{suffix}:{trait}": "required",
    }


def configure(fixture: Any, config: Any) -> None:
    """Set the options by which Placement serves many equal groups.

    Without them it tries all products of the groups (bug 2126751).
    """
    config.config(group="workarounds", optimize_for_wide_provider_trees=True)
    config.config(group="placement", max_allocation_candidates=1000)


class FullPassthrough(harness.AccelTestBase):
    def setUp(self) -> None:
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{placement.__name__}.PlacementFixture._configure_placement",
                configure,
            )
        )
        super().setUp()

    @pytest.mark.long
    def test_all_gpus_and_switches_go_to_one_server(self) -> None:
        self.start_host(*GPUS, *SWITCHES, device_spec=[LINE])
        specs = {"group_policy": "none"}
        for number in range(1, len(GPUS) + 1):
            trait = "CUSTOM_GPU_PCI_10DE_2330"
            specs |= group(f"_GPU{number}", "PGPU", trait)
        for number in range(1, len(SWITCHES) + 1):
            trait = "CUSTOM_ACCELERATOR_PCI_10DE_22A3"
            specs |= group(f"_NVSWITCH{number}", SWITCH_CLASS, trait)
        server = self.boot(specs)
        self.assertEqual(
            sorted(card.address for card in (*GPUS, *SWITCHES)),
            sorted(self.functions_of(server)),
        )
        self.assertEqual({SWITCH_CLASS: 1}, self.usages(SWITCHES[0].address))
        self._delete_server(server)
        self.assert_nothing_left()
