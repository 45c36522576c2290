# SPDX-License-Identifier: Apache-2.0
"""Starting nova-compute: wrong settings, and being switched off."""

import pytest

from tests.functional.nova import base

STOCK = "libvirt.LibvirtDriver"


class Start(base.AccelTestBase):
    @pytest.mark.each_release
    def test_unknown_driver(self) -> None:
        stop = self.assertRaises(
            SystemExit, self.start_host, base.TWO_T4[0], drivers=["mdve"]
        )
        self.assertEqual(1, stop.code)
        self.assertIn(
            "nova.conf [nova_accel] drivers = mdve: no such driver is"
            " installed; known are alveo, amd_mxgpu, dfl, intel_sriov, mdev,"
            " noop, nvidia_mdev, nvidia_vfio, pci_passthrough, pci_vf, qat",
            self.stdlog.logger.output,
        )

    def test_malformed_device_spec(self) -> None:
        for line, mend in (
            ('{"address": "0000:41:*"', "write one JSON object a line"),
            ('{"adress": "0000:41:*"}', "unknown key 'adress'; use address"),
            ('{"use": "of"}', "use must be one of auto, vgpu"),
        ):
            self.hosts.clear()
            stop = self.assertRaises(
                SystemExit,
                self.start_host,
                base.TWO_T4[0],
                device_spec=[line],
            )
            self.assertEqual(1, stop.code)
            self.assertIn(
                f"nova.conf [nova_accel] device_spec = {line}: {mend}",
                self.stdlog.logger.output,
            )

    def test_settings(self) -> None:
        self.start_host(
            *base.TWO_T4,
            device_spec=[
                '{"address": "0000:3c:*", "use": "off"}',
                '{"vendor_id": "10de", "max_slots": 3}',
            ],
        )
        self.assertEqual({self.provider(base.T4)}, set(self.providers()))
        self.assertEqual((3, 0), self.amounts(base.T4)["VGPU"])

    @pytest.mark.each_release
    def test_not_named_means_stock(self) -> None:
        """And a host without accelerators looks as a stock one does."""
        self.flags(compute_driver=STOCK)
        stock = self.start_host(base.TWO_T4[0], name="host1")
        self.assertEqual(
            "nova.virt.libvirt.driver", type(stock.driver).__module__
        )
        self.flags(compute_driver=self.COMPUTE_DRIVER)
        ours = self.start_host(name="host2")
        self.assertEqual(
            "virt_hooks.nova_driver", type(ours.driver).__module__
        )
        self.assertEqual({}, self.providers("host1"))
        self.assertEqual({}, self.providers("host2"))
        self.assertEqual([], self.hosts["host1"].writes())
        self.assertEqual(0, self.hosts["host1"].reads())
        roots = [self.compute_rp_uuids[n] for n in ("host1", "host2")]
        for look in (self._get_provider_inventory, self._get_provider_traits):
            first, second = map(look, roots)
            self.assertEqual(first, second)
        definitions = []
        for name in ("host1", "host2"):
            server = self.boot({}, host=name)
            text = self.domain(server, name).XMLDesc(0)
            definitions.append(
                text.replace(server["id"], "").replace(server["name"], "")
            )
        self.assertEqual(
            *(text.replace("00000002", "00000001") for text in definitions)
        )
