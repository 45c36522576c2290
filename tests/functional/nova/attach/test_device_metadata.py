# SPDX-License-Identifier: Apache-2.0
"""The metadata that a guest reads names its accelerators."""

import json
from typing import Any
from unittest import mock

from nova.api.metadata import base

from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies
from virt_hooks.guest import connection, device_metadata

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
        return [device["tags"] for device in self.read_devices(server)]

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

    def test_the_address_is_that_of_the_guest(self) -> None:
        """Libvirt chooses it; the guests of Nova's fixture have none."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        instance = self.instance(server)
        (mdev,) = self.mdevs_of(server)
        element = ELEMENT.replace(
            "<source/>", f"<source><address uuid='{mdev}'/></source>"
        )
        metadata = device_metadata.add_claims(
            None,
            self.computes["host1"].driver._accel.claims_of(server["id"]),
            f"<domain><devices>{element}</devices></domain>",
        )
        instance.device_metadata = metadata
        instance.save()
        self.assertEqual(
            [
                {
                    "type": "disk",
                    "serial": None,
                    "bus": "pci",
                    "address": "0000:06:00.1",
                    "tags": [device_metadata.TAG, "T4-4Q"],
                }
            ],
            self.read_devices(server),
        )

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
