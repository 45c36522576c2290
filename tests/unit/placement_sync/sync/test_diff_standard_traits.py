# SPDX-License-Identifier: Apache-2.0
"""A pass removes standard traits with the card that they describe.

The release before also set the traits that follow from a card's model.
"""

import dataclasses
from collections.abc import Iterable

from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.sync import diff
from tests.support.placement import applied_plans

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
        | {names.model_trait("10de", key), names.driver_trait("10de", "580")}
        | gpu.traits,
    )


def tree(key: str) -> providers.ProviderTree:
    return tree_builder.build_tree(
        ROOT, model.HostState(devices=(card(key),)), policy.DeviceRules()
    )


def test_a_replaced_card_loses_the_former_cards_traits() -> None:
    after = tree("T4")
    operators = {"CUSTOM_RACK_7"}
    before = with_traits(tree("P100"), card("P100").traits | operators)
    result = applied_plans.apply(before, diff.plan(before, after))
    (node_after,), (expected,) = result.nodes, after.nodes
    assert node_after.traits == expected.traits | operators


def test_an_operators_standard_trait_stays_on_the_same_card() -> None:
    after = tree("L40S")
    before = with_traits(after, {"HW_GPU_MAX_DISPLAY_HEADS_4"})
    assert diff.plan(before, after) == []


def test_an_upgrade_withdraws_what_the_former_release_set_once() -> None:
    after = tree("L40S")
    (node,) = after.nodes
    operators = {"HW_GPU_MAX_DISPLAY_HEADS_4", "CUSTOM_RACK_7"}
    before = with_traits(after, card("L40S").traits | operators)

    result = applied_plans.apply(before, diff.plan(before, after))

    assert result.nodes[0].traits == node.traits | operators
    assert diff.plan(result, after) == []
    # An operator whose flavors require one sets it again, and it stays.
    required = with_traits(result, {"HW_GPU_API_VULKAN"})
    assert diff.plan(required, after) == []


def test_a_downgrade_sets_them_again() -> None:
    former = with_traits(tree("L40S"), card("L40S").traits)
    result = applied_plans.apply(tree("L40S"), diff.plan(tree("L40S"), former))
    assert result.nodes[0].traits == former.nodes[0].traits


def with_traits(
    tree: providers.ProviderTree, traits: Iterable[str]
) -> providers.ProviderTree:
    """Return a tree whose only provider has more traits."""
    (node,) = tree.nodes
    return dataclasses.replace(
        tree,
        nodes=(dataclasses.replace(node, traits=node.traits | {*traits}),),
    )
