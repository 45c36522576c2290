# SPDX-License-Identifier: Apache-2.0
"""A pass removes standard traits with the card that they describe."""

import dataclasses

from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.sync import diff

ROOT = providers.ProviderRoot(
    name="compute-1", uuid="11111111-1111-1111-1111-111111111111"
)


def card(key: str) -> model.Device:
    gpu = loader.load().gpu(key)
    assert gpu is not None
    _, product = gpu.pci_ids[0].split(":")[:2]
    return model.Device(
        address="0000:41:00.0",
        plugin="pci-passthrough",
        technology="passthrough",
        vendor="nvidia",
        model=key,
        resource_class="PGPU",
        counters={"PGPU": 1},
        slots=("0000:41:00.0",),
        traits=names.identity_traits("10de", product[:4], None)
        | {names.model_trait("10de", key)}
        | gpu.traits,
    )


def tree(key: str) -> providers.ProviderTree:
    return tree_builder.build_tree(
        ROOT, model.HostState(devices=(card(key),)), policy.DeviceRules()
    )


def test_a_replaced_card_loses_the_former_cards_traits() -> None:
    before, after = tree("P100"), tree("T4")
    operators = "CUSTOM_RACK_7"
    (node,) = before.nodes
    before = dataclasses.replace(
        before,
        nodes=(dataclasses.replace(node, traits=node.traits | {operators}),),
    )

    result = diff.apply(before, diff.plan(before, after))

    (node_after,), (expected,) = result.nodes, after.nodes
    assert node_after.traits == expected.traits | {operators}


def test_an_operators_standard_trait_stays_on_the_same_card() -> None:
    before = after = tree("L40S")
    (node,) = before.nodes
    operators = "HW_GPU_MAX_DISPLAY_HEADS_4"
    before = dataclasses.replace(
        before,
        nodes=(dataclasses.replace(node, traits=node.traits | {operators}),),
    )
    assert diff.plan(before, after) == []
