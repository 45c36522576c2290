# SPDX-License-Identifier: Apache-2.0
"""Inspection without a ramdisk: Ironic reads a node's BMC over Redfish."""

from collections.abc import Iterator

import pytest

from tests.functional.ironic import ironic_service, redfish_service

H100 = {
    "DeviceClass": "DisplayController",
    "VendorId": "0x10DE",
    "DeviceId": "0x2330",
    "SubsystemVendorId": "0x10DE",
    "SubsystemId": "0x16C1",
}
QAT = {
    "DeviceClass": "Coprocessor",
    "VendorId": "0x8086",
    "DeviceId": "0x4940",
}
NIC = {
    "DeviceClass": "NetworkController",
    "VendorId": "0x8086",
    "DeviceId": "0x1592",
}


@pytest.fixture(scope="module")
def bmc(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[redfish_service.Bmc]:
    place = tmp_path_factory.mktemp("bmc")
    with redfish_service.start(place) as service:
        yield service


@pytest.fixture(scope="module")
def node(
    ironic: ironic_service.Ironic, bmc: redfish_service.Bmc
) -> ironic_service.BareMetal:
    return ironic.create(
        bmc.mac, driver="redfish", driver_info=bmc.driver_info
    )


def inspect(
    ironic: ironic_service.Ironic, node: ironic_service.BareMetal
) -> None:
    ironic.begin_inspection(node)
    ironic.await_state(node, "manageable")


def test_cards_that_a_bmc_reports_become_traits(
    ironic: ironic_service.Ironic,
    bmc: redfish_service.Bmc,
    node: ironic_service.BareMetal,
) -> None:
    bmc.functions = [H100] * 8 + [QAT, NIC]
    inspect(ironic, node)
    assert {
        "CUSTOM_GPU_NVIDIA_H100XM_X8",
        "CUSTOM_QAT_INTEL_4XXX_X1",
    } <= ironic.traits(node)
    fields = ironic.show(node)
    assert fields["resource_class"] == (
        "baremetal.gpu_nvidia_h100xm_x8.qat_intel_4xxx_x1"
    )
    assert len(fields["properties"]["accelerators"]) == 9


def test_a_card_that_left_the_bmc_takes_its_traits_with_it(
    ironic: ironic_service.Ironic,
    bmc: redfish_service.Bmc,
    node: ironic_service.BareMetal,
) -> None:
    bmc.functions = [H100] * 7
    inspect(ironic, node)
    traits = ironic.traits(node)
    assert "CUSTOM_GPU_NVIDIA_H100XM_X7" in traits
    assert "CUSTOM_GPU_NVIDIA_H100XM_X8" not in traits
    assert len(ironic.show(node)["properties"]["accelerators"]) == 7
