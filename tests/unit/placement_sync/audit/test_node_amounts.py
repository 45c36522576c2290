# SPDX-License-Identifier: Apache-2.0
"""Amounts of a server on its compute node, or the reason for none.

The amounts themselves are compared with Nova's own in
tests/functional/inventory/test_node_amounts.py.
"""

import dataclasses

import pytest

from nova_accel.model import providers
from placement_sync.audit import node_amounts
from placement_sync.client import nova_api

FLAVOR = nova_api.ServerFlavor(
    vcpus=4,
    memory_mb=2048,
    root_gb=20,
    other_gb=12,
    extra_specs={"resources_A:VGPU": "1", "resources_A:CUSTOM_X": "512"},
)
SERVER = nova_api.Server(uuid="s", flavor=FLAVOR, is_volume_backed=False)
CHARGED = {"VGPU": 1, "CUSTOM_X": 512}
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


def compute(
    specs: dict[str, str] | None = None,
    classes: tuple[str, ...] = CLASSES,
    is_volume_backed: bool | None = False,
) -> dict[str, int]:
    """Return the amounts on a node with inventories of these classes.

    :param specs: additional extra specs of the flavor.
    """
    server = dataclasses.replace(
        SERVER,
        flavor=dataclasses.replace(
            FLAVOR, extra_specs={**FLAVOR.extra_specs, **(specs or {})}
        ),
        is_volume_backed=is_volume_backed,
    )
    inventories = dict.fromkeys(classes, providers.Inventory(total=64))
    return node_amounts.compute(server, inventories, CHARGED)


def test_devices_are_left_out() -> None:
    usual = {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 32}
    assert compute() == usual
    assert compute(is_volume_backed=True) == usual | {"DISK_GB": 12}


def test_extra_specs_override_fields_of_the_flavor() -> None:
    specs = {
        "resources:VCPU": "2",
        "resources:DISK_GB": "0",
        "resources:CUSTOM_LICENCE": "1",
    }
    amounts = compute(specs, (*CLASSES, "CUSTOM_LICENCE"))
    assert amounts == {"VCPU": 2, "MEMORY_MB": 2048, "CUSTOM_LICENCE": 1}


def test_shared_cpu_policy_requests_vcpus() -> None:
    amounts = compute({"hw:cpu_policy": "shared"}, (*CLASSES, "PCPU"))
    assert (amounts["VCPU"], "PCPU" in amounts) == (4, False)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ({"hw:cpu_policy": "dedicated"}, "hw:cpu_policy=dedicated"),
        ({"hw:cpu_policy": "mixed"}, "hw:cpu_policy=mixed"),
        ({"hw:mem_encryption": "true"}, "hw:mem_encryption"),
        ({"hw:pmem": "2GB"}, "hw:pmem"),
        ({"accel:device_profile": "x"}, "accel:device_profile"),
        ({"pci_passthrough:alias": "x:1"}, "pci_passthrough:alias"),
        ({"resources:CUSTOM_Y": "1"}, "no inventory of CUSTOM_Y"),
        ({"resources_B:CUSTOM_Y": "1"}, "requests 1 CUSTOM_Y"),
        ({"resources_B:VGPU": "1"}, "requests 2 VGPU"),
        ({"resources_B:MEMORY_MB": "64"}, "requests 64 MEMORY_MB"),
    ],
)
def test_amounts_that_only_nova_can_compute(
    specs: dict[str, str], reason: str
) -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match=reason):
        compute(specs)


def test_an_image_may_request_dedicated_cpus() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="PCPU"):
        compute(classes=(*CLASSES, "PCPU"))


def test_a_class_without_an_inventory() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="DISK_GB"):
        compute(classes=("VCPU", "MEMORY_MB"))


def test_fields_that_nova_does_not_show() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="volume"):
        compute(is_volume_backed=None)
    hidden = dataclasses.replace(SERVER, flavor=None)
    with pytest.raises(node_amounts.UnknownAmountsError, match="flavor"):
        node_amounts.compute(hidden, {}, {})
