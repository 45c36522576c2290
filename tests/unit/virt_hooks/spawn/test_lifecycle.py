# SPDX-License-Identifier: Apache-2.0
"""Partitions are made and removed on a simulated kernel."""

import errno
import itertools

import pytest

from nova_accel import errors, model
from nova_accel.inventory import tree_builder
from nova_accel.model import actions, flavors, names
from nova_accel.vendors import mdev
from nova_accel.vendors.nvidia import mdev_driver
from tests.lab import fakehost
from tests.support.hosts.simulated import (
    EIGHT_Q,
    FOUR_Q,
    GPU,
    MTTY,
    OTHER,
    A,
    B,
    asks,
    node,
    slot,
    started,
    stopped,
)
from virt_hooks.spawn import lifecycle

# -- created and removed ----------------------------------------------------


def test_a_released_claim_leaves_nothing(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    before = node(life)
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    assert kernel.mdevs()[claim.handle]["type"] == "nvidia-232"
    assert claim.handle == names.mdev_uuid(slot().provider, "slot-0")
    assert claim.state is model.ClaimState.MADE
    assert life.claims_of(A) == life.claims() == (claim,)

    life.release(A, (slot(),), stopped)
    assert kernel.mdevs() == {}
    assert life.claims() == ()
    assert node(life) == before


def test_a_tree_is_built_again_only_after_a_change(
    life: lifecycle.Lifecycle,
) -> None:
    def tree() -> object:
        built = life.tree(tree_builder.OWNER_TRAITS)
        assert life.tree(tree_builder.OWNER_TRAITS) is built
        return built

    trees = [tree()]
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    trees.append(tree())
    life.set_unallocated({(*claim.key, "VGPU"): 1})
    trees.append(tree())
    life.set_unbacked_consumers(frozenset({A}))
    trees.append(tree())
    for before, after in itertools.pairwise(trees):
        assert before != after


def test_what_no_longer_fits_is_no_longer_offered(
    life: lifecycle.Lifecycle,
) -> None:
    """A T4 makes vGPUs of one size; a claimed one is not reserved, too."""
    assert {FOUR_Q, EIGHT_Q} <= node(life).traits
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    after = node(life)
    assert FOUR_Q in after.traits
    assert EIGHT_Q not in after.traits
    assert after.inventories["VGPU"].reserved == 0
    assert EIGHT_Q in node(life, OTHER).traits


def test_ensured_twice_is_ensured_once(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    groups, slots = (asks(FOUR_Q, 2),), (slot(0), slot(1))
    first = life.ensure(A, groups, slots)
    written = kernel.writes()
    assert life.ensure(A, groups, tuple(reversed(slots))) == first
    assert kernel.writes() == written
    assert life.claims() == first


def test_released_twice_is_released_once(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    life.release(A, (slot(),), stopped)
    written = kernel.writes()
    life.release(A, (slot(),), stopped)
    assert kernel.writes() == written


def test_a_server_without_accelerators_costs_nothing(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    reads = kernel.reads()
    assert life.ensure(A, (), ()) == ()
    life.release(A, (), stopped)
    assert kernel.reads() == reads


def test_one_card_s_slot_is_not_the_other_s(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Both slots are named slot-0; a resize releases only one of them."""
    both = (slot(0, GPU), slot(0, OTHER))
    life.ensure(A, (asks(FOUR_Q, 1, "_A"), asks(FOUR_Q, 1, "_B")), both)
    life.release(A, both[1:], stopped)
    (claim,) = life.claims_of(A)
    assert claim.device == GPU
    assert set(kernel.mdevs()) == {claim.handle}


def test_a_late_release_leaves_the_next_holder_alone(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Nova reassigned A's slot to B; then A is released once more."""
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    life.release(A, (slot(),), stopped)
    (claim,) = life.ensure(B, (asks(EIGHT_Q),), (slot(),))
    life.release(A, (slot(),), stopped)
    assert set(kernel.mdevs()) == {claim.handle}
    assert life.claims() == (claim,)


def test_a_running_guest_keeps_all(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    life.release(A, (slot(),), lambda _: True)
    assert set(kernel.mdevs()) == {claim.handle}
    assert life.claims() == (claim,)
    assert f"server {A} still runs" in caplog.text


def test_a_slot_s_old_partition_gives_way(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """A removal failed; the slot's next server has another profile."""
    kernel.fail("*/remove", "EBUSY")
    life.ensure(A, (asks(MTTY, 1),), (slot(0, "mtty"),))
    life.release(A, (slot(0, "mtty"),), stopped)
    kernel.heal()
    group = flavors.RequestGroup(
        suffix="_G",
        resources={"CUSTOM_MDEV": 1},
        required=frozenset({"CUSTOM_MDEV_MTTY_2"}),
    )
    life.ensure(B, (group,), (slot(0, "mtty"),))
    assert [m["type"] for m in kernel.mdevs().values()] == ["mtty-2"]


def test_a_leftover_of_the_last_server_is_recreated(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """A removal failed; the next server must not see its contents."""
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.fail("*/remove", "EBUSY")
    life.release(A, (slot(),), stopped)
    kernel.heal()
    before = len(kernel.writes())
    (claim,) = life.ensure(B, (asks(FOUR_Q),), (slot(),))
    written = [write["path"] for write in kernel.writes()[before:]]
    done = [path.rpartition("/")[2] for path in written]
    assert done == ["remove", "create"]
    assert set(kernel.mdevs()) == {claim.handle}


# -- failures --------------------------------------------------------------


def test_a_failure_in_the_middle_is_undone(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    (claim,) = life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.fail(
        f"bus/pci/devices/{OTHER}/mdev_supported_types/nvidia-233/create",
        "EIO",
    )
    groups = (asks(MTTY, 1, "_A"), asks(EIGHT_Q, 1, "_B"))
    with pytest.raises(errors.ActionError) as caught:
        life.ensure(B, groups, (slot(0, "mtty"), slot(0, OTHER)))
    assert caught.value.number == errno.EIO
    assert set(kernel.mdevs()) == {claim.handle}
    assert life.claims() == (claim,)
    assert life.host.state.device("mtty") is not None
    assert node(life, "mtty").inventories["CUSTOM_MDEV"].reserved == 0


def test_a_driver_s_own_failure_is_undone(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """A vendor's code may raise anything, between two actions."""

    class Broken(mdev.MdevDriver):
        def plan_prepare(self, claim: model.Claim) -> list[actions.Action]:
            if claim.device == "mtty":
                raise RuntimeError("a bug")
            return list(super().plan_prepare(claim))

    life.drivers = {**life.drivers, "mdev": Broken()}
    groups = (asks(FOUR_Q, 1, "_A"), asks(MTTY, 1, "_B"))
    with pytest.raises(RuntimeError):
        life.ensure(A, groups, (slot(), slot(0, "mtty")))
    assert kernel.mdevs() == {}
    assert life.claims() == ()


def test_a_driver_s_own_failure_affects_no_other_claim(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the partition of the broken driver stays, here and later."""

    class Broken(mdev_driver.NvidiaMdevDriver):
        def plan_release(self, claim: model.Claim) -> list[actions.Action]:
            raise RuntimeError("a bug")

    groups = (asks(FOUR_Q, 1, "_A"), asks(MTTY, 1, "_B"))
    slots = (slot(), slot(0, "mtty"))
    stuck, _ = life.ensure(A, groups, slots)
    drivers = life._release._drivers
    life._release._drivers = {**drivers, "nvidia_mdev": Broken()}
    life.release(A, slots, stopped)
    assert set(kernel.mdevs()) == {stuck.handle}
    life.ensure(B, groups[1:], slots[1:])
    life.store.remove_claims(B, slots[1:])
    life.clean_up()
    assert set(kernel.mdevs()) == {stuck.handle}
    assert "a bug" in caplog.text
    life._release._drivers = drivers
    life.clean_up()
    assert kernel.mdevs() == {}


def test_a_lost_race_makes_nothing(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(FOUR_Q, 4),), tuple(slot(n) for n in range(4)))
    written = kernel.writes()
    with pytest.raises(errors.ClaimError, match="another server was faster"):
        life.ensure(B, (asks(FOUR_Q),), (slot(4),))
    assert kernel.writes() == written
    assert len(life.claims()) == 4


def test_a_partition_that_cannot_be_removed_stays_reserved(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    caplog: pytest.LogCaptureFixture,
) -> None:
    life.ensure(A, (asks(FOUR_Q),), (slot(),))
    kernel.fail("*/remove", "EBUSY", times=1)
    life.release(A, (slot(),), stopped)
    assert "it stays reserved and is tried again" in caplog.text
    assert life.claims() == ()
    assert node(life).inventories["VGPU"].reserved == 1
    life.clean_up()
    life.host.refresh()
    assert kernel.mdevs() == {}
    assert node(life).inventories["VGPU"].reserved == 0


def test_a_flavor_that_names_a_profile_needs_a_slot(
    life: lifecycle.Lifecycle,
) -> None:
    with pytest.raises(errors.ClaimError) as caught:
        life.ensure(A, (asks(FOUR_Q),), ())
    assert f"asks for {FOUR_Q}, but Nova claimed no slot" in str(caught.value)
    assert "the next periodic update repairs it" in str(caught.value)


def test_a_node_that_is_not_registered_claims_nothing(
    kernel: fakehost.Controller,
) -> None:
    life = started(kernel)
    life.root = None
    with pytest.raises(errors.ClaimError, match="not registered itself yet"):
        life.ensure(A, (asks(FOUR_Q),), (slot(),))
    assert life.tree(tree_builder.OWNER_TRAITS) is None
    life.clean_up()
    life.release(A, (slot(),), stopped)
