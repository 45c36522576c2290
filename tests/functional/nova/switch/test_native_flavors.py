# SPDX-License-Identifier: Apache-2.0
"""Flavors for Nova's own vGPUs, beside hosts of this library."""

import json
from typing import Any

import pytest
from nova import objects
from nova.tests.functional.api import client

from nova_accel.config import conf
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.nova.switch import stock_driver

NATIVE = stock_driver.NATIVE_FLAVOR
SERVED = harness.vgpu_group("_GPU", "4Q")
LARGE = {"aggregate_instance_extra_specs:size": "large"}
LINES = [
    {
        "when": LARGE,
        "replace": NATIVE,
        "by": harness.vgpu_group("_GPU", "8Q"),
    },
    {"replace": NATIVE, "by": SERVED},
]


class FlavorsTestBase(scheduled.ScheduledTestBase, stock_driver.StockTestBase):
    """A scheduler with ``lines`` of the option."""

    lines: tuple[Any, ...] = ()

    def _setup_scheduler_service(self) -> Any:
        conf.read_native_flavors(harness.CONF)  # registers the option
        self.set_lines(*self.lines)
        return super()._setup_scheduler_service()

    def set_lines(self, *lines: Any) -> None:
        texts = list(map(json.dumps, lines))
        self.flags(group="nova_accel", native_flavors=texts)

    def start_mixed(self) -> None:
        """Start host1 with this library, and host2 with Nova's own."""
        self.use(stock_driver.ACCEL)
        self.start_host(*stock_driver.ON_FUNCTION)
        self.use(stock_driver.STOCK, stock_driver.T4_TYPE)
        self.start_host(*stock_driver.ON_FUNCTION, name="host2")

    def be_on_host(self, server: Any, name: str) -> None:
        host = self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]
        self.assertEqual(name, host)

    def tries_on(self, host: str) -> list[str]:
        """Return the log's lines of builds that a host refused."""
        return [
            line
            for line in self.messages().splitlines()
            if "was re-scheduled" in line and host in line
        ]


class NativeFlavors(FlavorsTestBase):
    @pytest.mark.oldest
    def test_they_go_to_stock_hosts_without_a_line(self) -> None:
        self.start_mixed()
        for _ in range(2):
            server = self.boot(NATIVE)
            self.be_on_host(server, "host2")
            self.assertEqual(1, len(self.mdevs_of(server, "host2")))
        server = self.boot(SERVED)
        self.be_on_host(server, "host1")
        self.assertEqual([], self.tries_on("host1"))

    def test_none_is_refused_before_the_first_host_reports(self) -> None:
        """Placement does not know the trait of our providers yet."""
        self.use(stock_driver.STOCK, stock_driver.T4_TYPE)
        self.start_host(*stock_driver.ON_FUNCTION)
        self.assertEqual(1, len(self.mdevs_of(self.boot(NATIVE))))


class ServedFlavors(FlavorsTestBase):
    """With lines: the flavor's own words choose the profile."""

    lines = tuple(LINES)

    @pytest.mark.oldest
    def test_a_server_gets_the_profile_of_its_line(self) -> None:
        self.start_mixed()
        server = self.boot(NATIVE)
        self.be_on_host(server, "host1")
        self.assertEqual(
            {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096},
            self.allocations(server)[self.provider(harness.T4)],
        )
        self.assertEqual(1, len(self.mdevs_of(server)))
        self._reboot_server(server, hard=True)
        self.assertEqual(1, len(self.mdevs_of(server)))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_the_first_line_that_applies_counts(self) -> None:
        self.start_host(*stock_driver.ON_FUNCTION)
        self.boot(NATIVE | LARGE)
        self.assertEqual(8192, self.memory_used())

    @pytest.mark.long
    def test_its_flavor_is_the_profiles_from_then_on(self) -> None:
        self.start_host(*stock_driver.ON_FUNCTION)
        server = self.boot(NATIVE)
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor"]
        )
        self.assertEqual(SERVED, instance.flavor.extra_specs)

    @pytest.mark.each_release
    @pytest.mark.long
    def test_a_shelved_server_comes_back_with_its_memory(self) -> None:
        """Nova kept the flavor of the first request."""
        self.start_host(*stock_driver.ON_FUNCTION)
        server = self.boot(NATIVE)
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self.assertEqual(0, self.memory_used())
        self.set_lines()
        self._unshelve_server(server)
        self.assertEqual(4096, self.memory_used())
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_a_resize_gets_the_profile_of_the_new_flavor(self) -> None:
        self.power_off_to_move()
        self.flags(allow_resize_to_same_host=True)
        self.start_host(*harness.TWO_T4)
        server = self.boot(NATIVE)
        flavor = self._create_flavor(extra_spec=NATIVE | LARGE)
        server = self._resize_server(server, flavor)
        self._confirm_resize(server)
        self.assertEqual(
            [{"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}],
            [a for a in self.allocations(server).values() if "VGPU" in a],
        )
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.each_release
    @pytest.mark.long
    def test_a_server_of_a_stock_host_moves_to_a_profile(self) -> None:
        self.power_off_to_move()
        server = self.boot_on_stock_host()
        server = self._migrate_server(server)
        self._confirm_resize(server)
        self.be_on_host(server, "host1")
        self.assertEqual(4096, self.memory_used())
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_a_live_migration_keeps_the_kind_of_the_device(self) -> None:
        server = self.boot_on_stock_host()
        with self.assertRaisesRegex(
            client.OpenStackApiException, "NoValidHost"
        ):
            self._live_migrate(server)
        self.be_on_host(server, "host2")
        self.assertEqual(0, self.memory_used())

    def boot_on_stock_host(self) -> Any:
        """Return a server on host2; host1 with this library comes later."""
        self.set_lines()
        self.use(stock_driver.STOCK, stock_driver.T4_TYPE)
        self.start_host(*stock_driver.ON_FUNCTION, name="host2")
        server = self.boot(NATIVE)
        self.set_lines(*self.lines)
        self.use(stock_driver.ACCEL)
        self.start_host(*stock_driver.ON_FUNCTION)
        return server

    def memory_used(self) -> int:
        return self.usages(harness.T4).get("CUSTOM_GPU_MEMORY_MB", 0)


class PciInPlacement(FlavorsTestBase):
    def setUp(self) -> None:
        super().setUp()
        alias = {"name": "gpu", "resource_class": "PGPU"}
        self.flags(group="pci", alias=[json.dumps(alias)])
        self.flags(group="filter_scheduler", pci_in_placement=True)

    @pytest.mark.each_release
    def test_an_alias_of_our_class_is_not_sent_to_our_host(self) -> None:
        self.start_host(*harness.GPU_CARDS)
        self.boot({"pci_passthrough:alias": "gpu:1"}, expected_state="ERROR")
        self.assertNotIn("Claim pci failed", self.messages())
        self.assertIn("NoValidHost", self.messages())
