# SPDX-License-Identifier: Apache-2.0
"""Nova's own functional tests pass with AccelLibvirtDriver, too."""

from typing import Any

import pytest
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import test_vgpu

from tests.functional.nova_own import switched
from virt_hooks import nova_driver

globals().update(switched.cases())


@pytest.mark.skipif(switched.is_stock(), reason="runs Nova's own driver")
class Beside(switched.Switched, test_vgpu.VGPUTestBase):
    def test_accelerator_cards_are_in_placement(self) -> None:
        """The other tests pass beside the library's providers."""
        self.flags(
            enabled_mdev_types=fakelibvirt.NVIDIA_11_VGPU_TYPE,
            group="devices",
        )
        compute: Any = self.start_compute_with_vgpu("host1")
        self.assertIsInstance(compute.driver, nova_driver.AccelLibvirtDriver)
        provider_names = [
            record["name"] for record in self._get_all_providers()
        ]
        self.assertIn("host1_accel_0000_65_00_0", provider_names)
        self.assertIn("host1_pci_0000_81_01_0", provider_names)
