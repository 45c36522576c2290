# SPDX-License-Identifier: Apache-2.0
"""vGPUs on typed VFs, and whole cards, through Nova."""

import dataclasses
from pathlib import Path
from typing import Any

import fixtures
import pytest
from lxml import etree

from nova_accel.model import names
from tests.functional.nova.support import harness
from tests.lab import fakehost

L40S = "0000:3d:00.0"
CARD = fakehost.NvidiaGpu(
    address=L40S,
    model="L40S",
    interface="vfio",
    total_vfs=4,
    enabled_vfs=4,
)
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
#: NVIDIA's number of L40S-8Q in this driver release.
EIGHT = "1152"


def typed_group(shape: str, suffix: str = "_A") -> dict[str, str]:
    """Return the extra specs of one L40S profile, as ``8Q``."""
    size = int(shape.rstrip("ABCQ")) * 1024
    return {
        f"resources{suffix}:VGPU": "1",
        f"resources{suffix}:CUSTOM_GPU_MEMORY_MB": str(size),
        f"trait{suffix}:CUSTOM_VGPU_NVIDIA_L40S_{shape}": "required",
    }


class Vfio(harness.AccelTestBase):
    def fault(self, server: Any) -> str:
        details = self.api.get_server(server["id"])
        return str(details.get("fault", {}).get("message", ""))

    @pytest.mark.long
    def test_a_function_that_can_not_be_read_at_the_start(self) -> None:
        """Its server's claim is restored once the function is readable."""
        host = self.start_host(dataclasses.replace(AMD, enabled_vfs=4))
        (trait,) = self.profiles(S7150)
        server = self.boot(
            {"resources_A:VGPU": "2", f"trait_A:{trait}": "required"}
        )
        before = host.driver._accel.claims_of(server["id"])
        group = f"bus/pci/devices/{before[1].handle}/iommu_group/devices"
        self.hosts["host1"].fail(group, "EIO", on="list")
        accel = self.restart().driver._accel
        self.assertEqual(before[:1], accel.claims_of(server["id"]))
        self.hosts["host1"].heal()
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_accel.discovery.change_detection.FULL_READ_INTERVAL_S",
                -1,
            )
        )
        self.run_periodics()
        self.assertEqual(before, accel.claims_of(server["id"]))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_vfs_come_with_the_service(self) -> None:
        """The host's reboot loses them, and the types with them."""
        self.start_host(
            dataclasses.replace(CARD, enabled_vfs=0),
            device_spec=['{"address": "0000:3d:*", "num_vfs": 4}'],
        )
        self.assertEqual((4, 0), self.amounts(L40S)["VGPU"])
        server = self.boot(typed_group("8Q"))
        typed = self.vgpu_types()
        self._stop_server(server)
        self.hosts["host1"].reboot()
        self.assertEqual({}, self.vgpu_types())
        self.restart()
        self._start_server(server)
        self.assertEqual(typed, self.vgpu_types())
        self.assertEqual((4, 0), self.amounts(L40S)["VGPU"])
        self._delete_server(server)
        self.assertEqual({}, self.vgpu_types())
        self.assert_nothing_left()

    @pytest.mark.long
    def test_restart_while_the_card_can_not_be_read(self) -> None:
        """The claims of its servers are restored as soon as possible."""
        self.start_host(CARD)
        server = self.boot(typed_group("8Q"))
        typed = self.vgpu_types()
        before = self.stable_providers()
        self.hosts["host1"].fail(
            f"bus/pci/devices/{L40S}/vendor", "EIO", on="read"
        )
        self.restart()
        self.run_periodics()
        self.assertEqual((), self.computes["host1"].driver._accel.claims())
        self.assertEqual((4, 4), self.amounts(L40S)["VGPU"])
        self.assertIn(names.FAULTED_TRAIT, self.traits(L40S))
        self.hosts["host1"].heal()
        self.run_periodics()
        self.assertEqual(before, self.stable_providers())
        self._reboot_server(server, hard=True)
        self.assertEqual(typed, self.vgpu_types())
        self._delete_server(server)
        self.assertEqual({}, self.vgpu_types())
        self.assert_nothing_left()

    @pytest.mark.long
    def test_another_size_is_refused(self) -> None:
        self.start_host(CARD)
        first = self.boot(typed_group("8Q"))
        self.until(
            lambda: self.assertNotIn(
                "CUSTOM_VGPU_NVIDIA_L40S_4Q", self.profiles(L40S)
            )
        )
        second = self.boot(typed_group("8Q"))
        refused = self.boot(typed_group("4Q"), expected_state="ERROR")
        self.assertIn("No valid host", self.fault(refused))
        self.assertEqual(2, len(self.vgpu_types()))
        for server in (first, second, refused):
            self._delete_server(server)
        self.assertEqual({}, self.vgpu_types())
        grown = self.boot(typed_group("4Q"))
        self._delete_server(grown)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_display_needs_a_newer_libvirt(self) -> None:
        self.start_host(CARD)
        specs = typed_group("8Q") | {"accelerator:display": "on"}
        refused = self.boot(specs, expected_state="ERROR")
        self.assertIn("needs libvirt 10.3.0", self.stdlog.logger.output)
        self.assertEqual({}, self.vgpu_types())
        self._delete_server(refused)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_options_of_an_mdev(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(
            harness.vgpu_group("_A", "4Q")
            | {"accelerator:display": "on", "accelerator:ramfb": "on"}
        )
        (element,) = self.defined_hostdevs(server)
        self.assertEqual("on", element.get("display"))
        self.assertEqual("on", element.get("ramfb"))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_whole_card_is_one_slot_of_the_guest(self) -> None:
        for machine, bus in (("pc", "0x00"), ("q35", "0x01")):
            self.flags(hw_machine_type=[f"x86_64={machine}"], group="libvirt")
            name = f"host-{machine}"
            self.start_host(*harness.GPU_CARDS, name=name)
            server = self.boot(harness.whole_gpu_group("_A"), host=name)
            addresses = [
                element.find("./address").attrib
                for element in self.defined_hostdevs(server, name)
            ]
            self.assertEqual([bus, bus], [a["bus"] for a in addresses])
            self.assertEqual(1, len({a["slot"] for a in addresses}))
            self.assertEqual(
                ["0x0", "0x1"], [a["function"] for a in addresses]
            )
            self.assertEqual(
                ["on", None], [a.get("multifunction") for a in addresses]
            )
            self._delete_server(server)
            self.assert_nothing_left(name)

    def defined_hostdevs(self, server: Any, host: str = "host1") -> list[Any]:
        """Return the hostdevs of a guest's definition.

        The definition is valid by libvirt's schema.
        """
        root = etree.fromstring(self.domain(server, host).definition_xml)
        if SCHEMA.exists():
            form = etree.RelaxNG(etree.parse(SCHEMA))
            self.assertTrue(form.validate(root), form.error_log)
        elements: list[Any] = root.findall("./devices/hostdev")
        return elements


S7150 = "0000:9a:00.0"
AMD = fakehost.PciCard(
    address=S7150,
    vendor=0x1002,
    device=0x6929,
    class_code=0x030000,
    driver="gim",
    total_vfs=16,
    enabled_vfs=2,
    takes_vf_count=False,
    vf_device=0x692F,
)
