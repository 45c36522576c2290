# SPDX-License-Identifier: Apache-2.0
"""A server's devices are made, visible everywhere, and removed."""

import pytest

from nova_accel.model import names
from tests.functional.nova.support import harness, libvirtd
from tests.lab import fakehost

SMALL = harness.vgpu_group("_A", "4Q")


class Servers(harness.AccelTestBase):
    @pytest.mark.oldest
    def test_boot_and_delete(self) -> None:
        self.start_host(*harness.TWO_T4)
        before = self.stable_providers()
        self.assertEqual(
            {self.provider(harness.T4), self.provider(harness.T4_B)},
            set(before),
        )
        self.assertEqual(
            {"VGPU": (16, 0), "CUSTOM_GPU_MEMORY_MB": (harness.T4_MEMORY, 0)},
            self.amounts(harness.T4),
        )
        self.assertLess(
            {
                names.OWNER_TRAIT,
                names.NOVA_OWNER_TRAIT,
                "CUSTOM_ACCELERATOR_DEVICE_10DE_1EB8",
                "CUSTOM_ACCELERATOR_NUMA_0",
                harness.vgpu_trait("1Q"),
                harness.vgpu_trait("16Q"),
            },
            self.traits(harness.T4),
        )

        server = self.boot(SMALL)

        ((uuid, amounts),) = self.allocations(server).items()
        self.assertIn(uuid, before)
        self.assertEqual({"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}, amounts)
        ((provider, name, slot),) = self.slots(server)
        self.assertEqual((uuid, "VGPU"), (provider, name))
        (mdev,) = self.mdevs_of(server)
        self.assertEqual(names.mdev_uuid(uuid, slot), mdev)
        mdevs = self.hosts["host1"].mdevs()
        self.assertEqual({mdev}, set(mdevs))
        self.assertTrue(mdevs[mdev]["in_use"])
        self.assertEqual("nvidia-232", mdevs[mdev]["type"])
        self.assertEqual(uuid, self.provider(mdevs[mdev]["parent"]))

        self._delete_server(server)

        self.assert_nothing_left()
        self.assertEqual(before, self.stable_providers())

    def test_one_card_has_one_size_from_the_first_server_on(self) -> None:
        self.start_host(harness.TWO_T4[0])
        fresh = self.profiles(harness.T4)
        of_one_size = {harness.vgpu_trait(s) for s in ("4Q", "4A", "4C")}

        first = self.boot(SMALL)
        # No periodic pass has run since: it was sent at once.
        self.assertEqual(of_one_size, self.profiles(harness.T4))
        # Three more of this size fit, and none of another one.
        self.assertEqual((4, 0), self.amounts(harness.T4)["VGPU"])
        second = self.boot(harness.vgpu_group("_A", "4C"))
        self.assertEqual(
            {"VGPU": 2, "CUSTOM_GPU_MEMORY_MB": 8192}, self.usages(harness.T4)
        )
        self.assertEqual(2, len(self.hosts["host1"].mdevs()))
        other = self.boot(
            harness.vgpu_group("_A", "2Q"), expected_state="ERROR"
        )
        self.assertIn("No valid host", other["fault"]["message"])

        self._delete_server(first)
        self.assertEqual(of_one_size, self.profiles(harness.T4))
        self.assertEqual(
            set(self.mdevs_of(second)), set(self.hosts["host1"].mdevs())
        )
        self._delete_server(second)
        self.assertEqual(fresh, self.profiles(harness.T4))
        self._delete_server(other)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_traits_change_before_the_guest_starts(self) -> None:
        """A spawn may take minutes; the next one is scheduled meanwhile."""
        self.start_host(harness.TWO_T4[0])
        profiles = []
        stock = libvirtd.Connection.defineXML

        def define(connection: libvirtd.Connection, xml: str) -> object:
            profiles.append(self.profiles(harness.T4))
            return stock(connection, xml)

        self.stub_out(
            "tests.functional.nova.support.libvirtd.Connection.defineXML",
            define,
        )
        self.boot(SMALL)
        self.assertNotIn(harness.vgpu_trait("2Q"), profiles[0])

    @pytest.mark.long
    def test_two_profiles_on_two_cards_and_a_whole_one(self) -> None:
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS)
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))
        before = self.stable_providers()

        server = self.boot(
            harness.vgpu_group("_A", "4Q")
            | harness.vgpu_group("_B", "8Q")
            | harness.whole_gpu_group("_C")
            | {"group_policy": "isolate"}
        )

        mdevs = self.hosts["host1"].mdevs()
        self.assertEqual(set(self.mdevs_of(server)), set(mdevs))
        self.assertEqual(
            {"nvidia-232", "nvidia-233"},
            {mdev["type"] for mdev in mdevs.values()},
        )
        self.assertEqual(
            {harness.T4, harness.T4_B},
            {mdev["parent"] for mdev in mdevs.values()},
        )
        for mdev in mdevs.values():
            size = {"nvidia-232": 4096, "nvidia-233": 8192}[mdev["type"]]
            self.assertEqual(
                {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": size},
                self.usages(mdev["parent"]),
            )
        self.assertEqual(
            [harness.GPU, harness.GPU_AUDIO], sorted(self.functions_of(server))
        )
        self.assertEqual({"PGPU": 1}, self.usages(harness.GPU))
        functions = self.hosts["host1"].functions()
        for address in (harness.GPU, harness.GPU_AUDIO):
            self.assertEqual("vfio-pci", functions[address]["driver"])
        self.run_periodics()
        self.assertEqual({"PGPU": (1, 0)}, self.amounts(harness.GPU))

        self._delete_server(server)

        self.assert_nothing_left()
        self.assertEqual(before, self.stable_providers())
        functions = self.hosts["host1"].functions()
        self.assertEqual("", functions[harness.GPU]["driver"])
        self.assertEqual(
            "snd_hda_intel", functions[harness.GPU_AUDIO]["driver"]
        )

    @pytest.mark.long
    def test_group_without_suffix(self) -> None:
        """Nova reads resources:VGPU itself when it reboots a server."""
        self.start_host(harness.TWO_T4[0])
        server = self.boot(harness.vgpu_group("", "4Q"))
        (mdev,) = self.mdevs_of(server)
        self._reboot_server(server, hard=True)
        self.assertEqual([mdev], self.mdevs_of(server))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_virtual_functions_and_a_driver_off_the_bus(self) -> None:
        card = "0000:41:00.0"
        self.start_host(
            fakehost.NvidiaGpu(address=card, model="A40", enabled_vfs=4),
            fakehost.Mtty(),
        )
        before = self.stable_providers()
        self.assertEqual((4, 0), self.amounts(card)["VGPU"])
        flavor = {
            "resources_A:VGPU": "1",
            "resources_A:CUSTOM_GPU_MEMORY_MB": "8192",
            "trait_A:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
            "resources_B:CUSTOM_MDEV": "1",
            "trait_B:CUSTOM_MDEV_MTTY_2": "required",
            "group_policy": "none",
        }
        servers = [self.boot(flavor) for _ in range(2)]
        mdevs = self.hosts["host1"].mdevs()
        functions = set()
        for server in servers:
            kinds = {}
            for uuid in self.mdevs_of(server):
                kinds[mdevs[uuid]["type"]] = mdevs[uuid]["parent"]
            self.assertEqual({"nvidia-562", "mtty-2"}, set(kinds))
            self.assertEqual("mtty", kinds["mtty-2"])
            slots = {name: slot for _, name, slot in self.slots(server)}
            self.assertEqual(kinds["nvidia-562"], slots["VGPU"])
            functions.add(slots["VGPU"])
        self.assertEqual(2, len(functions))
        self.assertEqual(
            {"VGPU": 2, "CUSTOM_GPU_MEMORY_MB": 16384}, self.usages(card)
        )
        self.assertEqual({"CUSTOM_MDEV": 2}, self.usages("mtty"))
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()
        self.assertEqual(before, self.stable_providers())

    @pytest.mark.oldest
    def test_server_without_accelerators(self) -> None:
        """A host's own trait with a similar name is not removed."""
        self.start_host(harness.TWO_T4[0])
        root = self.compute_rp_uuids["host1"]
        traits = self._get_provider_traits(root)
        self._create_trait("CUSTOM_GPU_RACK")
        self._set_provider_traits(root, [*traits, "CUSTOM_GPU_RACK"])
        server = self.boot({"trait:CUSTOM_GPU_RACK": "required"})
        self.assertEqual([], self.hostdevs(server))
        self.assertEqual([], self.slots(server))
        self._delete_server(server)
        self.assert_nothing_left()
