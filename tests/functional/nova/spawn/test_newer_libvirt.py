# SPDX-License-Identifier: Apache-2.0
"""Guests of a libvirt that is newer than Nova requires."""

from typing import Any

import pytest
from lxml import etree

from tests.functional.nova.spawn.test_typed_vfs import CARD, L40S, typed_group
from tests.functional.nova.support import harness

LIBVIRT, QEMU = 12_008_000, 11_001_003


class NewerLibvirt(harness.AccelTestBase):
    #: What libvirt says about /dev/iommu of its host.
    iommufd = "yes"

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.fakeLibVersion, connection.fakeVersion = LIBVIRT, QEMU
        stock = connection.getDomainCapabilities

        def read(emulator: Any, arch: Any, *arguments: Any) -> str:
            # libvirt takes None for the architecture of its host
            text = stock(emulator, arch or "x86_64", *arguments)
            root = etree.fromstring(text)
            hostdev = root.find("./devices/hostdev")
            enum = etree.SubElement(hostdev, "enum", name="iommufd")
            etree.SubElement(enum, "value").text = self.iommufd
            return str(etree.tostring(root, encoding="unicode"))

        connection.getDomainCapabilities = read
        return connection

    def definition(self, server: Any) -> Any:
        return etree.fromstring(self.domain(server, "host1").definition_xml)

    @pytest.mark.long
    def test_memory_nodes_of_a_whole_gpu(self) -> None:
        self.start_host(*harness.GPU_CARDS)
        specs = {"accelerator:memory_nodes": "2"}
        server = self.boot(harness.whole_gpu_group("_A") | specs)
        root = self.definition(server)
        cells = [
            (cell.get("id"), cell.get("memory"))
            for cell in root.findall("./cpu/numa/cell")
        ]
        memory = root.findtext("./memory")
        self.assertEqual([("0", memory), ("1", "0"), ("2", "0")], cells)
        self.assertEqual(
            ["1,2"],
            [n.get("nodeset") for n in root.findall("./devices/hostdev/acpi")],
        )
        self._reboot_server(server, hard=True)
        self.assertEqual(
            3, len(self.definition(server).findall("./cpu/numa/cell"))
        )
        self._delete_server(server)
        self.assert_nothing_left()

    def test_a_host_that_is_configured_to_use_iommufd(self) -> None:
        self.start_host(CARD, use_iommufd=True)
        server = self.boot(typed_group("8Q"))
        (driver,) = self.definition(server).findall("./devices/hostdev/driver")
        self.assertEqual("yes", driver.get("iommufd"))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_a_host_that_has_no_iommufd(self) -> None:
        self.iommufd = "no"
        self.start_host(CARD, use_iommufd=True)
        refused = self.boot(typed_group("8Q"), expected_state="ERROR")
        self.assertIn(
            "libvirt says that this host has none", self.stdlog.logger.output
        )
        self._delete_server(refused)
        self.assertEqual({}, self.usages(L40S))
        self.assert_nothing_left()
