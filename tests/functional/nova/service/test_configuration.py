# SPDX-License-Identifier: Apache-2.0
"""nova-compute reports invalid configuration when it starts."""

import json
import os
import pathlib
from typing import Any

import fixtures
import nova.conf
import pytest
from oslo_config import cfg

from tests.functional.nova.support import harness
from tests.hosts import look
from tests.lab import fakehost
from virt_hooks.report import config_checks

SPEC = json.dumps({"vendor_id": "10de", "product_id": "1eb8"})
OFF = json.dumps({"address": harness.T4, "use": "off"})


class Configuration(harness.AccelTestBase):
    def assert_refused(
        self, *words: str, cards: Any = harness.TWO_T4[:1], **settings: Any
    ) -> None:
        """Check that the service ends with one line, without a traceback."""
        stop = self.assertRaises(
            SystemExit, self.start_host, *cards, **settings
        )
        self.assertEqual(1, stop.code)
        (line,) = self.lines("nova-accel can't start")
        for word in words:
            self.assertIn(word, line)
        self.assertNotIn("Traceback", self.messages())

    def lines(self, word: str) -> list[str]:
        output: str = self.stdlog.logger.output
        return [line for line in output.splitlines() if word in line]

    def test_a_device_that_nova_passes_through_is_refused(self) -> None:
        self.flags(device_spec=[SPEC], group="pci")
        self.assert_refused(
            f"[pci] device_spec = {SPEC}", harness.T4, "default"
        )

    @pytest.mark.each_release
    def test_the_refusal_has_both_lines(self) -> None:
        self.flags(device_spec=[SPEC], group="pci")
        line = json.dumps({"address": "0000:3b:*", "use": "vgpu"})
        self.assert_refused(
            f"[pci] device_spec = {SPEC}",
            f"[nova_accel] device_spec = {line}",
            device_spec=[line],
        )

    @pytest.mark.long
    def test_an_alias_of_an_offered_device_is_logged(self) -> None:
        alias = {"name": "t4", "vendor_id": "10de", "product_id": "1eb8"}
        self.flags(alias=[json.dumps(alias)], group="pci")
        self.start_host(harness.TWO_T4[0])
        self.assertIn(
            f"names {harness.T4}, which nova-accel offers, and no line of"
            " [pci] device_spec: a flavor with pci_passthrough:alias=t4:1"
            " gets no device of this host",
            self.messages(),
        )

    def test_a_device_that_is_off_here_is_nova_s(self) -> None:
        self.flags(device_spec=[SPEC], group="pci")
        self.start_host(harness.TWO_T4[0], device_spec=[OFF])

    def test_a_type_of_nova_s_own_vgpus_is_refused(self) -> None:
        self.flags(enabled_mdev_types=["nvidia-232"], group="devices")
        self.assert_refused(
            "[devices] enabled_mdev_types = nvidia-232", harness.T4
        )

    @pytest.mark.long
    def test_a_type_of_a_parent_off_the_pci_bus_is_refused(self) -> None:
        self.flags(enabled_mdev_types=["mtty-2"], group="devices")
        self.assert_refused(
            "[devices] enabled_mdev_types = mtty-2: names mtty,",
            '{"address": "mtty", "use": "off"}',
            cards=[fakehost.Mtty()],
        )

    @pytest.mark.long
    def test_a_type_of_other_cards_is_nova_s(self) -> None:
        """Nova uses a type only on the addresses that it names."""
        self.flags(
            enabled_mdev_types=["nvidia-231", "nvidia-232"], group="devices"
        )
        nova.conf.devices.register_dynamic_opts(nova.conf.CONF)
        for type_id, address in (
            ("nvidia-231", harness.T4),
            ("nvidia-232", harness.T4_B),
        ):
            self.flags(device_addresses=[address], group=f"mdev_{type_id}")
        rules = [OFF, json.dumps({"address": harness.T4_B, "use": "vgpu"})]
        self.assert_refused(
            f"enabled_mdev_types = nvidia-232: names {harness.T4_B},",
            cards=harness.TWO_T4,
            device_spec=rules,
        )

    @pytest.mark.long
    def test_a_type_that_no_managed_card_has_is_nova_s(self) -> None:
        self.flags(enabled_mdev_types=["nvidia-9999"], group="devices")
        self.start_host(harness.TWO_T4[0])

    def test_failed_checks_of_the_host_are_logged(self) -> None:
        place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        path = place / "host/etc/nova/nova.conf"
        root = look.make("passthrough", place / "host")
        path.parent.mkdir(parents=True)
        path.write_text(f"[nova_accel]\nroot = {root}\ndevce_spec = x\n")
        options = cfg.ConfigOpts()
        options([], default_config_files=[str(path)], default_config_dirs=[])
        names = config_checks.log_failed_checks(options)
        self.assertEqual(
            {"iommu.group", "drv.wrong", "nova.options"}, {*names}
        )
        (line,) = self.lines("Check nova.options of this host failed")
        self.assertIn("[nova_accel] devce_spec: is ignored", line)
        self.assertIn("did you mean device_spec?", line)
        (line,) = self.lines("Check drv.wrong of this host failed")
        self.assertIn("ERROR", line)
        self.assertIn("0000:b4:00.0 is bound to nouveau", line)

    def test_an_unusable_state_dir_is_one_error(self) -> None:
        self.start_host(harness.TWO_T4[0], state_dir=os.devnull)
        errors_logged = [
            line for line in self.lines(os.devnull) if "ERROR" in line
        ]
        self.assertEqual(1, len(errors_logged), errors_logged)
        self.assertIn("[nova_accel] state_dir", errors_logged[0])
        self.run_periodics()
        card = self.traits(harness.T4)
        self.assertIn("CUSTOM_ACCELERATOR_UNKNOWN", card)
        self.assertNotIn("CUSTOM_ACCELERATOR_DRAINED", card)
        self.assertEqual((16, 16), self.amounts(harness.T4)["VGPU"])
