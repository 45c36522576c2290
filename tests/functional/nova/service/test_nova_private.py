# SPDX-License-Identifier: Apache-2.0
"""Private names of Nova, as each of its releases has them."""

from unittest import mock

import pytest
from nova import policy
from nova.virt.libvirt import driver as stock_driver
from openstack import proxy

from nova_accel.model import names
from tests.functional.nova.support import harness
from virt_hooks import nova_driver, nova_private

OVERRIDDEN = {
    "_attach_mediated_devices",
    "_build_device_metadata",
    "_cleanup",
    "_create_guest",
    "_get_guest_config",
    "_guest_add_mdevs",
    "_hard_reboot",
    "_live_migration_operation",
    "_resume_guest_after_snapshot",
    "_vgpu_allocations",
}


@pytest.mark.oldest
class NovaPrivate(harness.AccelTestBase):
    """Names that virt_hooks reads, calls or overrides exist in Nova."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host(harness.TWO_T4[0])
        self.driver = self.computes["host1"].driver

    def test_the_tracker_assigns_and_frees_a_slot(self) -> None:
        tracker = nova_private.tracker_of(self.driver.virtapi)
        self.assertIs(self.computes["host1"].manager.rt, tracker)
        root = self.driver._accel.root
        card = names.provider_uuid(root.uuid, harness.T4)
        allocations = {card: {"resources": {"VGPU": 1}}}
        claimed = nova_private.claim_resources(tracker, allocations)
        self.assertEqual([card], [c.provider_uuid for c in claimed])
        assigned = tracker.assigned_resources[card]["VGPU"]
        self.assertEqual(1, len(assigned))
        nova_private.release_resources(tracker, claimed)
        self.assertEqual(0, len(assigned))

    def test_nova_reports_the_parents_of_its_own_types(self) -> None:
        self.assertEqual((), nova_private.list_mdev_parents(self.driver))
        name = "pci_0000_06_00_0"
        with mock.patch.object(
            self.driver, "_get_gpu_inventories", return_value={name: {}}
        ):
            parents = nova_private.list_mdev_parents(self.driver)
        self.assertEqual((name,), parents)

    def test_an_expired_provider_is_read_again(self) -> None:
        client = self.driver.virtapi.reportclient
        root = self.driver._accel.root
        path = f"/resource_providers/{root.uuid}/traits"
        nova_private.expire_provider(client, root.uuid)
        with mock.patch.object(client, "get", wraps=client.get) as get:
            for _ in range(2):
                client.get_provider_tree_and_ensure_root(
                    self.context, root.uuid, name=root.name
                )
        reads = [c for c in get.call_args_list if c.args[0] == path]
        self.assertEqual(1, len(reads))

    def test_an_adapter_of_placement_is_that_of_nova_s_options(self) -> None:
        self.flags(group="placement", endpoint_override="http://127.0.0.1:9")
        adapter = nova_private.open_placement(7.0)._client
        self.assertIsInstance(adapter, proxy.Proxy)
        self.assertEqual("http://127.0.0.1:9", adapter.endpoint_override)
        self.assertEqual(7.0, adapter.session.timeout)

    def test_the_tracker_reads_allocations_that_it_uses_only(self) -> None:
        server = self.boot(harness.vgpu_group("", "4Q"))
        client = self.driver.virtapi.reportclient
        root = self.driver._accel.root
        with mock.patch.object(
            client,
            "get_allocations_for_resource_provider",
            wraps=client.get_allocations_for_resource_provider,
        ) as read:
            self.run_periodics()
            # Nova searches deleted servers on the compute node itself.
            read.assert_called_once_with(mock.ANY, root.uuid)
            read.reset_mock()
            allocations = client.get_allocations_for_provider_tree(
                self.context, root.name
            )
            read.assert_not_called()
            self.assertEqual([server["id"]], list(allocations))
            self.assertEqual(2, read.call_count)

    def test_the_policy_has_an_enforcer(self) -> None:
        enforcer = nova_private.policy_enforcer()
        self.assertIs(policy._ENFORCER, enforcer)
        self.assertIn("context_is_admin", enforcer.rules)

    def test_names_of_the_driver_are_not_nova_s(self) -> None:
        """Nova's driver has methods like ``_live_migration`` itself."""
        stock = stock_driver.LibvirtDriver(self.driver.virtapi)
        own = {
            name
            for name, value in vars(self.driver).items()
            if type(value).__module__.startswith("virt_hooks.")
        }
        self.assertEqual({"_accel", "_hooks"}, own)
        self.assertEqual(set(), own & {*dir(stock)})

    def test_each_method_of_the_driver_overrides_one_of_nova(self) -> None:
        methods = {
            name
            for name, value in vars(nova_driver.AccelLibvirtDriver).items()
            if callable(value)
        }
        self.assertLess(OVERRIDDEN, methods)
        self.assertEqual(set(), methods - {*dir(stock_driver.LibvirtDriver)})
