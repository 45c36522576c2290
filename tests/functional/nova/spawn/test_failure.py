# SPDX-License-Identifier: Apache-2.0
"""A spawn that fails reports its reason, and leaves nothing behind."""

import os
import uuid

import pytest
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.model import names
from tests.functional.nova.support import harness, libvirtd

SMALL = harness.vgpu_group("_A", "4Q")
CREATE = f"class/mdev_bus/{harness.T4}/mdev_supported_types/nvidia-232/create"


class Failures(harness.AccelTestBase):
    @pytest.mark.long
    def test_kernel_refuses(self) -> None:
        self.start_host(harness.TWO_T4[0])
        before = self.profiles(harness.T4)
        for code, hint in (
            ("ENOSPC", "free a partition or choose another profile"),
            ("EIO", "see the kernel's log (dmesg) on this host"),
        ):
            self.hosts["host1"].fail(CREATE, code, times=1)
            server = self.boot(SMALL, expected_state="ERROR")
            self.assertIn(f"{code} (", self.messages())
            self.assertIn(hint, self.messages())
            # Nova's last error has no reason; nova-conductor's log has it.
            self.assertRegex(self.messages(), f"last host: host1.*{code}")
            self._delete_server(server)
            self.assert_nothing_left()
            self.assertEqual(before, self.profiles(harness.T4))
            self.assertEqual((16, 0), self.amounts(harness.T4)["VGPU"])
        # Without a second try the user reads it; the reason is logged.
        self.flags(max_attempts=1, group="scheduler")
        self.hosts["host1"].fail(CREATE, "ENOSPC", times=1)
        server = self.boot(SMALL, expected_state="ERROR")
        fault = server["fault"]["message"]
        self.assertIn("the host can't provide the accelerators", fault)
        for word in ("ENOSPC", harness.T4, "mdev", "host1"):
            self.assertNotIn(word, fault)
        self.assertIn("ENOSPC (No space left on device)", self.messages())
        self._delete_server(server)
        server = self.boot(SMALL)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.each_release
    def test_next_host_is_tried(self) -> None:
        self.start_host(harness.TWO_T4[0], name="host1")
        self.start_host(harness.TWO_T4[0], name="host2")
        for name in ("host1", "host2"):
            self.hosts[name].fail(CREATE, "ENOSPC", times=1)
        # Both hosts are tried in turn, and each
        # fails once.
        server = self.boot(SMALL, expected_state="ERROR")
        self._delete_server(server)
        self.assert_nothing_left("host1")
        self.assert_nothing_left("host2")
        self.hosts["host1"].fail(CREATE, "ENOSPC")
        servers = [self.boot(SMALL) for _ in range(2)]
        for server in servers:
            self.assertEqual("host2", server["OS-EXT-SRV-ATTR:host"])
        self.assertEqual(2, len(self.hosts["host2"].mdevs()))
        self.assertEqual({}, self.usages(harness.T4, "host1"))
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left("host1")
        self.assert_nothing_left("host2")

    @pytest.mark.long
    def test_second_device_of_a_server_fails(self) -> None:
        """The first device is removed again."""
        self.start_host(*harness.TWO_T4)
        self.hosts["host1"].fail(CREATE.replace("232", "233"), "EIO")
        self.hosts["host1"].fail(
            CREATE.replace("232", "233").replace(harness.T4, harness.T4_B),
            "EIO",
        )
        server = self.boot(
            harness.vgpu_group("_A", "4Q")
            | harness.vgpu_group("_B", "8Q")
            | {"group_policy": "isolate"},
            expected_state="ERROR",
        )
        creates = [
            w
            for w in self.hosts["host1"].writes()
            if w["path"].endswith("/create")
        ]
        self.assertEqual(2, len(creates), creates)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_lost_race(self) -> None:
        """The card got an mdev between scheduling and claiming."""
        self.start_host(harness.TWO_T4[0])
        foreign = str(uuid.uuid4())
        sysfs = self.hosts["host1"].sys
        libvirtd.store(
            sysfs / CREATE.replace("nvidia-232", "nvidia-230"), foreign
        )

        server = self.boot(SMALL, expected_state="ERROR")

        self.assertIn("another server was faster", self.messages())
        self.assertEqual({foreign}, set(self.hosts["host1"].mdevs()))
        self.assertEqual({}, self.usages(harness.T4))
        # The refusal itself has updated Placement.
        self.assertNotIn(harness.vgpu_trait("4Q"), self.profiles(harness.T4))
        self.assertEqual((16, 1), self.amounts(harness.T4)["VGPU"])
        libvirtd.store(sysfs / "bus/mdev/devices" / foreign / "remove", "1")
        self.run_periodics()
        self._delete_server(server)
        server = self.boot(SMALL)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_guest_that_does_not_start(self) -> None:
        self.start_host(harness.TWO_T4[0])
        before = self.profiles(harness.T4)
        stock = libvirtd.Domain.createWithFlags
        tried = []

        def refuse(domain: libvirtd.Domain, flags: int) -> None:
            tried.append(domain.name())
            if len(tried) == 1:
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, "qemu ended unexpectedly"
                )
            stock(domain, flags)

        self.stub_out(
            f"{libvirtd.__name__}.Domain.createWithFlags",
            refuse,
        )
        server = self.boot(SMALL, expected_state="ERROR")
        self.assertEqual(1, len(tried))
        self.assert_nothing_left()
        self.assertEqual(before, self.profiles(harness.T4))
        self._delete_server(server)
        server = self.boot(SMALL)
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_device_that_can_not_be_removed(self) -> None:
        """It stays reserved; the next pass tries again."""
        self.start_host(harness.TWO_T4[0])
        server = self.boot(SMALL)
        (mdev,) = self.mdevs_of(server)
        self.hosts["host1"].fail(f"bus/mdev/devices/{mdev}/remove", "EIO")
        self._delete_server(server)
        self.assertEqual({mdev}, set(self.hosts["host1"].mdevs()))
        self.assertEqual({}, self.usages(harness.T4))
        self.assertEqual((4, 1), self.amounts(harness.T4)["VGPU"])
        self.assertIn("it stays reserved and is tried again", self.messages())
        self.run_periodics()
        self.assertEqual((4, 1), self.amounts(harness.T4)["VGPU"])
        self.hosts["host1"].heal()
        self.run_periodics()
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.assertEqual((16, 0), self.amounts(harness.T4)["VGPU"])
        self.assertEqual(
            16384, self.amounts(harness.T4)["CUSTOM_GPU_MEMORY_MB"][0]
        )

    @pytest.mark.long
    def test_foreign_mdevs_stay_and_orphans_go(self) -> None:
        self.start_host(harness.TWO_T4[0])
        sysfs = self.hosts["host1"].sys
        foreign = str(uuid.uuid4())
        orphan = names.mdev_uuid(self.provider(harness.T4), "slot-3")
        libvirtd.store(sysfs / CREATE, foreign)
        libvirtd.store(sysfs / CREATE, orphan)
        self.run_periodics()
        self.assertEqual({foreign}, set(self.hosts["host1"].mdevs()))
        self.assertEqual(
            {"VGPU": (4, 1), "CUSTOM_GPU_MEMORY_MB": (16384, 4096)},
            self.amounts(harness.T4),
        )
        servers = [self.boot(SMALL) for _ in range(3)]
        self.assertEqual(4, len(self.hosts["host1"].mdevs()))
        self.assertEqual(set(), self.profiles(harness.T4))
        full = self.boot(SMALL, expected_state="ERROR")
        for server in (*servers, full):
            self._delete_server(server)
        self.assertEqual({foreign}, set(self.hosts["host1"].mdevs()))
        self.assertTrue(os.path.exists(sysfs / "bus/mdev/devices" / foreign))
        self.assertEqual({}, self.usages(harness.T4))
