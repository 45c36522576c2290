# SPDX-License-Identifier: Apache-2.0
"""Leftovers of a failed clean-up are removed, other partitions stay."""

import dataclasses

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from tests.lab import fakehost
from tests.support.hosts import domains, shapes, simulated
from tests.support.hosts.simulated import (
    EIGHT_Q,
    FOUR_Q,
    ROOT,
    A,
    B,
    asks,
    node,
    slot,
    stopped,
)
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, lifecycle


def test_a_reassigned_slot_belongs_to_its_new_server(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The first server's clean-up failed before its release."""
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    life.ensure(B, (asks(FOUR_Q),), (slot(),))
    assert {claim.consumer for claim in life.claims()} == {B}
    life.release(B, (slot(),), stopped)
    assert kernel.mdevs() == {}
    assert EIGHT_Q in node(life).traits


def test_a_partition_in_a_guest_is_not_removed(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    libvirt: domains.SimulatedDomains,
) -> None:
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    use = connection.HostdevUse(mdevs=frozenset({claim.handle}))
    libvirt.set_use(use)
    before = len(kernel.writes())
    with pytest.raises(errors.ClaimError) as caught:
        life.ensure(B, (asks(FOUR_Q),), (slot(),))
    assert f"still holds {claim.handle}, and a guest has it" in str(
        caught.value
    )
    assert kernel.writes()[before:] == []
    life.release(B, (slot(),), stopped)
    assert kernel.writes()[before:] == [], "Nova cleans up what was refused"
    assert life.claims() == (claim,), "the server whose guest runs keeps it"
    life.release(A, (slot(),), stopped, domain=use)
    assert kernel.mdevs() == {}, "it was the server's own domain that had it"


def test_an_orphan_stays_while_a_guest_has_it(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    libvirt: domains.SimulatedDomains,
) -> None:
    """Its server was deleted while no nova-compute ran."""
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    libvirt.set_use(connection.HostdevUse(mdevs=frozenset({claim.handle})))
    access = host_access.HostAccess(domains=libvirt)
    later = simulated.started(kernel, access=access)
    later.clean_up()
    assert set(kernel.mdevs()) == {claim.handle}
    libvirt.set_use(connection.HostdevUse())
    later.clean_up()
    assert kernel.mdevs() == {}


def test_a_leftover_that_cannot_be_removed_is_not_assigned(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.fail("*/remove", "EBUSY")
    life.release(A, (slot(),), stopped)
    with pytest.raises(errors.ClaimError) as caught:
        life.ensure(B, (asks(FOUR_Q),), (slot(),))
    assert f"{claim.handle} could not be cleaned after its last" in str(
        caught.value
    )
    assert "Device or resource busy" in str(caught.value)
    assert life.claims() == ()


def test_a_trait_without_a_profile_needs_no_claim(
    life: lifecycle.Lifecycle,
) -> None:
    """Nova's own vGPU support, with a trait the operator set by hand."""
    group = flavors.RequestGroup(
        suffix="",
        resources={"VGPU": 1},
        required=frozenset({"CUSTOM_VGPU_BIG"}),
    )
    assert life.ensure(A, (group,), ()) == ()


CARD = shapes.whole_card("0000:65:00.0", members=("0000:65:00.1",))
CLAIM = model.Claim(
    consumer=A,
    provider=names.provider_uuid(ROOT.uuid, CARD.address),
    device=CARD.address,
    profile="10de:1e30",
    slot=CARD.address,
    parent=CARD.address,
    handle=CARD.address,
    technology="passthrough",
)


def reserved(
    device: model.Device, used: set[str], *claims: model.Claim
) -> tuple[int, frozenset[str]]:
    """Return what a whole card reserves, and its slots."""
    tree: providers.ProviderTree = tree_builder.build_tree(
        ROOT,
        model.HostState(devices=(device,)),
        policy.DeviceRules(),
        claims,
        occupied=frozenset(used),
    )
    provider = tree.nodes[0]
    return provider.inventories["PGPU"].reserved, provider.slots["PGPU"]


@pytest.mark.parametrize("used", ["0000:65:00.0", "0000:65:00.1"])
def test_a_whole_card_that_a_foreign_guest_has_is_reserved(used: str) -> None:
    """Nova's own PCI passthrough gave it away before the switch."""
    assert reserved(CARD, {used})[0] == 1
    assert reserved(CARD, {used}, CLAIM)[0] == 0
    assert reserved(CARD, {"0000:66:00.0"})[0] == 0


def test_an_mdev_card_is_not_reserved_whole_for_one_function() -> None:
    shared = dataclasses.replace(CARD, technology="mdev")
    assert reserved(shared, {"0000:65:00.0"})[0] == 0
