# SPDX-License-Identifier: Apache-2.0
"""Selected tests of ``nova.tests.functional.libvirt``.

Tests of vGPUs, PCI devices and moves. Each push has one of each kind, and
``tests/run --whole`` some more; ``NOVA_ACCEL_NOVA_OWN=all`` runs them all.
"""

#: Module -> test case -> tests that run by default.
USUAL: dict[str, dict[str, tuple[str, ...]]] = {
    "test_vgpu": {
        "VGPUTests": (
            "test_create_servers_with_vgpu",
            "test_resize_servers_with_vgpu",
        ),
        "VGPULiveMigrationTests": ("test_live_migrate_server",),
    },
    "test_pci_sriov_servers": {
        "SRIOVServersTest": (
            "test_create_server_with_VF",
            "test_live_migrate_VF_success",
        ),
        "VDPAServersTest": ("test_suspend_and_resume",),
        "PCIServersTest": (
            "test_same_host_resize_with_pci",
            "test_cold_migrate_server_with_pci",
            "test_evacuate",
            "test_unshelve_after_offload",
        ),
    },
    "test_pci_in_placement": {
        "PlacementPCIInventoryReportingTests": (
            "test_device_reconfiguration",
        ),
        "PlacementPCIAllocationHealingTests": (
            "test_heal_partial_allocations",
        ),
    },
    "test_reshape": {"VGPUReshapeTests": ("test_create_servers_with_vgpu",)},
    "test_live_migration": {},
    "test_device_bus_migration": {},
}

#: Tests by default that ``tests/run --whole`` has alone.
LONG = frozenset(
    {
        "test_pci_sriov_servers_PCIServersTest::test_evacuate",
        "test_pci_sriov_servers_PCIServersTest"
        "::test_same_host_resize_with_pci",
        "test_pci_sriov_servers_PCIServersTest::test_unshelve_after_offload",
        "test_pci_sriov_servers_SRIOVServersTest::test_create_server_with_VF",
        "test_reshape_VGPUReshapeTests::test_create_servers_with_vgpu",
        "test_vgpu_VGPUTests::test_create_servers_with_vgpu",
    }
)

#: Tests that only Nova's own driver can pass, with the reason.
EXCLUDED: dict[str, str] = {
    "test_device_bus_migration.LibvirtDeviceBusMigration"
    ".test_machine_type_and_bus_and_model_migration": (
        "It puts the service's own _get_guest_config in the place of"
        " LibvirtDriver's: that of a subclass then calls itself for ever."
    ),
}
