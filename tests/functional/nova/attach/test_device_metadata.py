# SPDX-License-Identifier: Apache-2.0
"""The metadata that a guest reads names its accelerators."""

import json
import pathlib
from typing import Any
from unittest import mock

import fixtures
import pytest
from nova.api.metadata import base

from contrib.guest import nova_accel_guest
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies
from virt_hooks.guest import connection
from virt_hooks.operations.metadata import device_metadata

ELEMENT = (
    '<hostdev mode="subsystem" type="mdev"><source/>'
    "<address type='pci' domain='0x0000' bus='0x06' slot='0x00'"
    " function='0x1'/></hostdev>"
)


class GuestMetadata(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def read_devices(self, server: Any) -> list[dict[str, Any]]:
        """Return the devices in the metadata service's answer."""
        metadata = base.get_metadata_by_instance_id(server["id"], "10.0.0.1")
        content = metadata.lookup("/openstack/latest/meta_data.json")
        devices: list[dict[str, Any]] = json.loads(content)["devices"]
        return devices

    def list_tags(self, server: Any) -> list[list[str]]:
        """Return the tags of each accelerator but its description."""
        return [device["tags"][:2] for device in self.read_devices(server)]

    def test_profiles_of_the_flavor_and_attached_ones(self) -> None:
        self.start_hosts("host1")
        plain = self.boot({})
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        tags = [device_metadata.TAG, "T4-4Q"]
        self.assertEqual([tags], self.list_tags(server))
        self.attach(server, "T4-4Q")
        self.assertEqual([tags, tags], self.list_tags(server))
        self.reboot_hard(server)
        self.assertEqual([tags, tags], self.list_tags(server))
        self.detach(server)
        self.assertEqual([tags], self.list_tags(server))
        self.assertEqual([], self.list_tags(plain))

    @pytest.mark.long
    def test_the_address_is_that_of_the_guest(self) -> None:
        """Libvirt chooses it; the guests of Nova's fixture have none."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        instance = self.instance(server)
        (mdev,) = self.mdevs_of(server)
        element = ELEMENT.replace(
            "<source/>", f"<source><address uuid='{mdev}'/></source>"
        )
        accel = self.computes["host1"].driver._accel
        metadata = device_metadata.add_claims(
            None,
            server["id"],
            accel.claims_of(server["id"]),
            f"<domain><devices>{element}</devices></domain>",
            accel.host,
        )
        instance.device_metadata = metadata
        instance.save()
        (device,) = self.read_devices(server)
        *tags, description = device.pop("tags")
        self.assertEqual([device_metadata.TAG, "T4-4Q"], tags)
        self.assertEqual(
            {
                "type": "disk",
                "serial": None,
                "bus": "pci",
                "address": "0000:06:00.1",
            },
            device,
        )
        self.check_description(json.loads(description))

    def check_description(self, description: dict[str, Any]) -> None:
        ids = {description.pop("root"), description.pop("node")}
        self.assertEqual(2, len(ids))
        self.assertEqual(
            {
                "version": 1,
                "profile": "T4-4Q",
                "model": "T4",
                "bridges": [],
                "link_speed": "16.0 GT/s PCIe",
                "link_width": 16,
                "license": "vWS",
            },
            description,
        )

    @pytest.mark.long
    def test_the_script_of_guests_reads_both_ways(self) -> None:
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        metadata = base.get_metadata_by_instance_id(server["id"], "10.0.0.1")
        name = "openstack/latest/meta_data.json"
        drive = dict(metadata.metadata_for_config_drive())[name]
        labels = []
        for content in (metadata.lookup(f"/{name}"), drive):
            place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
            (place / "metadata").write_bytes(content)
            words = {
                "--metadata": place / "metadata",
                "--nfd": place / "nfd",
                "--dra": place / "dra",
                "--nccl": place / "nccl",
            }
            flat = [str(word) for pair in words.items() for word in pair]
            self.assertEqual(0, nova_accel_guest.main(flat))
            labels.append((place / "nfd").read_text())
        self.assertEqual(labels[0], labels[1])
        self.assertIn("nova-accel.license=vWS\n", labels[0])
        self.assertIn("nova-accel.profile=T4-4Q\n", labels[0])

    def test_an_error_does_not_stop_the_server(self) -> None:
        self.start_hosts("host1")
        with mock.patch.object(
            connection,
            "find_hostdevs",
            side_effect=ValueError("odd"),
        ):
            server = self.boot(harness.vgpu_group("_A", "4Q"))
        self.assertEqual([], self.read_devices(server))
        self.assertIn(
            "can't add accelerators to the metadata", self.messages()
        )
