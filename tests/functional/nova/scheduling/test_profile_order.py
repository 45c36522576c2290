# SPDX-License-Identifier: Apache-2.0
"""Flavors with choices: the first that fits anywhere, in real services."""

from typing import Any

import pytest
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.nova.switch import stock_driver

T4_FIRST = {
    **harness.vgpu_group("_GPU1", "4Q"),
    "accelerator:profiles": "T4-4Q,A40-8Q,*-4Q",
}
A40_8Q = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}


class ProfileOrder(scheduled.ScheduledTestBase):
    def start_both(self) -> None:
        """Start host1 with a T4, and host2 with an A40."""
        self.start_host(*stock_driver.ON_FUNCTION)
        self.start_host(*stock_driver.ON_VFS, name="host2")

    def find_host(self, server: Any) -> str:
        name: str = self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]
        return name

    def read_specs(self, server: Any) -> dict[str, str]:
        """Return the extra specs of the flavor that the server has."""
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor"]
        )
        specs: dict[str, str] = instance.flavor.extra_specs
        return specs

    def fill_t4(self) -> Any:
        return self.boot(harness.vgpu_group("_A", "16Q"))

    @pytest.mark.oldest
    def test_the_first_choice_that_fits_is_given(self) -> None:
        self.start_both()
        first = self.boot(T4_FIRST)
        self.assertEqual("host1", self.find_host(first))
        self.assertEqual(
            harness.vgpu_group("_GPU1", "4Q"), self.read_specs(first)
        )
        self._delete_server(first)
        self.fill_t4()
        second = self.boot(T4_FIRST)
        self.assertEqual("host2", self.find_host(second))
        (amounts,) = self.allocations(second).values()
        self.assertEqual(A40_8Q, {k: amounts[k] for k in A40_8Q})
        self.assertEqual(
            {
                "resources_GPU1:VGPU": "1",
                "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
                "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
            },
            self.read_specs(second),
        )
        (mdev,) = self.mdevs_of(second, "host2")
        self._reboot_server(second, hard=True)
        self.assertEqual([mdev], list(self.mdevs_of(second, "host2")))
        self._delete_server(second)
        self.assertEqual({}, self.hosts["host2"].mdevs())

    @pytest.mark.long
    def test_a_choice_that_another_filter_refuses_is_not_taken(self) -> None:
        self.start_both()
        (service,) = self.api.get_services(binary="nova-compute", host="host1")
        self.api.put_service(service["id"], {"status": "disabled"})
        server = self.boot(T4_FIRST)
        self.assertEqual("host2", self.find_host(server))

    @pytest.mark.long
    def test_a_size_of_all_models_is_the_last_choice(self) -> None:
        """With equal amounts the card decides what was given."""
        self.start_host(*stock_driver.ON_VFS, name="host2")
        specs = {
            **harness.vgpu_group("_GPU1", "4Q"),
            "accelerator:profiles": "T4-4Q,*-4Q",
        }
        server = self.boot(specs)
        self.assertIn(
            "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_4Q", self.read_specs(server)
        )

    @pytest.mark.long
    def test_a_shelved_server_comes_back_with_its_model(self) -> None:
        self.start_both()
        blocking = self.fill_t4()
        server = self.boot(T4_FIRST)
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self._delete_server(blocking)
        self._unshelve_server(server)
        self.assertEqual("host2", self.find_host(server))

    @pytest.mark.long
    def test_an_evacuated_server_keeps_its_model(self) -> None:
        """Nova kept the flavor of the first request."""
        self.start_both()
        blocking = self.fill_t4()
        server = self.boot(T4_FIRST)
        self._delete_server(blocking)
        self.start_host(*stock_driver.ON_VFS, name="host3")
        self.computes["host2"].stop()
        self.force_down(True, "host2")
        self._evacuate_server(server, expected_host="host3")
        self.assertIn(
            "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q", self.read_specs(server)
        )

    @pytest.mark.long
    def test_a_migration_keeps_the_model(self) -> None:
        self.start_both()
        blocking = self.fill_t4()
        server = self.boot(T4_FIRST)
        self._delete_server(blocking)
        with self.assertRaisesRegex(
            client.OpenStackApiException, "NoValidHost"
        ):
            self.api.post_server_action(server["id"], {"migrate": None})

    @pytest.mark.long
    def test_a_resize_chooses_anew(self) -> None:
        self.power_off_to_move()
        self.start_both()
        blocking = self.fill_t4()
        server = self.boot(T4_FIRST)
        self._delete_server(blocking)
        flavor = self._create_flavor(extra_spec=T4_FIRST)
        server = self._resize_server(server, flavor)
        self._confirm_resize(server)
        self.assertEqual("host1", self.find_host(server))
        self.assertEqual(
            harness.vgpu_group("_GPU1", "4Q"), self.read_specs(server)
        )

    @pytest.mark.long
    def test_a_request_that_no_choice_serves_names_the_reasons(self) -> None:
        self.start_both()
        self.fill_t4()
        specs = {
            **harness.vgpu_group("_GPU1", "4Q"),
            "accelerator:profiles": "T4-4Q,T4-8Q",
        }
        server = self.boot(specs, expected_state="ERROR")
        message = server["fault"]["message"]
        self.assertIn("T4-4Q: ", message)
        self.assertNotIn("host1", message)

    def test_a_limit_counts_what_was_given(self) -> None:
        """Nova counts the usage once more when a host was chosen."""
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        keystone = self.useFixture(nova_fixtures.UnifiedLimitsFixture())
        for name, limit in (
            ("servers", 10),
            ("class:CUSTOM_GPU_MEMORY_MB", 16384 + 4096),
        ):
            keystone.create_registered_limit(
                resource_name=name, default_limit=limit
            )
        self.start_both()
        blocking = self.fill_t4()
        # The fixture of RPC casts hands the error on to the API.
        with self.assertRaisesRegex(
            client.OpenStackApiException,
            "over limit of 20480 due to current usage 24576 and delta 0",
        ):
            self.boot(T4_FIRST)
        (server,) = self.api.get_servers(
            detail=False, search_opts={"status": "ERROR"}
        )
        # Nova deletes these allocations with the server only.
        self.assertEqual([A40_8Q], [*self.allocations(server).values()])
        self._delete_server(server)
        self.assertEqual({}, self.allocations(server))
        self._delete_server(blocking)
        self.assertEqual("host1", self.find_host(self.boot(T4_FIRST)))

    @pytest.mark.long
    def test_a_list_that_can_t_be_used_is_refused(self) -> None:
        self.start_both()
        for value in ("T4-4Q,A40-9Q", "A40-4Q,T4-4Q"):
            specs = {
                **harness.vgpu_group("_GPU1", "4Q"),
                "accelerator:profiles": value,
            }
            server = self.boot(specs, expected_state="ERROR")
            self.assertIn("accelerator:profiles", server["fault"]["message"])
