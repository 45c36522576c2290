# SPDX-License-Identifier: Apache-2.0
"""Amounts of a server on its compute node, if they are certain.

The amounts themselves are compared with Nova's own in
tests/functional/test_node_amounts_nova.py.
"""

import dataclasses

import pytest

from nova_accel.model import providers
from placement_sync.audit import node_amounts
from placement_sync.client import nova_types

FLAVOR = nova_types.ServerFlavor(
    vcpus=4,
    memory_mb=2048,
    root_gb=20,
    other_gb=12,
    extra_specs={"resources_A:VGPU": "1", "resources_A:CUSTOM_X": "512"},
)
SERVER = nova_types.Server(uuid="s", flavor=FLAVOR, is_volume_backed=False)
CHARGED = {"VGPU": 1, "CUSTOM_X": 512}
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


def compute(
    specs: dict[str, str] | None = None,
    classes: tuple[str, ...] = CLASSES,
    is_volume_backed: bool | None = False,
) -> dict[str, int]:
    """Return the amounts, of a node with inventories of these classes.

    :param specs: more extra specs of the flavor.
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


def test_what_a_flavor_says_overrides_its_fields() -> None:
    specs = {
        "resources:VCPU": "2",
        "resources:DISK_GB": "0",
        "resources:CUSTOM_LICENCE": "1",
    }
    found = compute(specs, (*CLASSES, "CUSTOM_LICENCE"))
    assert found == {"VCPU": 2, "MEMORY_MB": 2048, "CUSTOM_LICENCE": 1}


def test_processors_are_shared_where_the_flavor_says_so() -> None:
    found = compute({"hw:cpu_policy": "shared"}, (*CLASSES, "PCPU"))
    assert (found["VCPU"], "PCPU" in found) == (4, False)


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
def test_what_only_nova_can_compute_is_unknown(
    specs: dict[str, str], reason: str
) -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match=reason):
        compute(specs)


def test_an_image_may_ask_for_dedicated_processors() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="PCPU"):
        compute(classes=(*CLASSES, "PCPU"))


def test_a_class_without_an_inventory_is_elsewhere() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="DISK_GB"):
        compute(classes=("VCPU", "MEMORY_MB"))


def test_what_nova_does_not_show_is_unknown() -> None:
    with pytest.raises(node_amounts.UnknownAmountsError, match="volume"):
        compute(is_volume_backed=None)
    hidden = dataclasses.replace(SERVER, flavor=None)
    with pytest.raises(node_amounts.UnknownAmountsError, match="flavor"):
        node_amounts.compute(hidden, {}, {})
