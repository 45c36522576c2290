# SPDX-License-Identifier: Apache-2.0
"""mdevs whose uuid another program chose: adopted ones, and foreign ones."""

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import action_executor
from nova_accel.model import actions, names
from tests.lab import fakehost
from tests.support.hosts import domains, simulated
from tests.support.hosts.simulated import FOUR_Q, GPU, A, B, asks, stopped
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

A40, VF = "0000:41:00.0", "0000:41:00.4"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(address=GPU, model="T4"),
        fakehost.NvidiaGpu(address=A40, model="A40", enabled_vfs=4),
    )
)
EIGHT_Q = "CUSTOM_VGPU_NVIDIA_A40_8Q"
MDEV = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
ON_CARD = model.Slot(
    provider=names.provider_uuid(simulated.ROOT.uuid, GPU),
    resource_class="VGPU",
    identifier=MDEV,
)
ON_VF = model.Slot(
    provider=names.provider_uuid(simulated.ROOT.uuid, A40),
    resource_class="VGPU",
    identifier=VF,
)
CASES = {
    "card": (ON_CARD, FOUR_Q, (GPU, "nvidia-232")),
    "VF": (ON_VF, EIGHT_Q, (VF, "nvidia-562")),
}
each_place = pytest.mark.parametrize("place", CASES)


def create(kernel: fakehost.Controller, place: str) -> None:
    """Create an mdev as another program does."""
    parent, type_id = CASES[place][2]
    action_executor.Executor(str(kernel.root)).apply(
        actions.CreateMdev(parent=parent, type_id=type_id, uuid=MDEV)
    )


def held_by(domain: str) -> connection.HostdevUse:
    """Return the mdev as a host device of a domain, by its uuid."""
    handles = frozenset({MDEV})
    return connection.HostdevUse(mdevs=handles, by_domain={domain: handles})


@each_place
def test_an_adopted_mdev_is_its_servers_until_the_delete(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
    libvirt: domains.SimulatedDomains,
    place: str,
) -> None:
    slot, trait, _ = CASES[place]
    create(kernel, place)
    life.host.refresh()
    libvirt.set_use(held_by(A))
    (claim,) = life.restore(A, (slot,), (asks(trait),))
    assert (claim.handle, claim.state) == (MDEV, model.ClaimState.MADE)
    assert life.ensure(A, (asks(trait),), (slot,)) == (claim,)
    life.clean_up()
    assert kernel.mdevs().keys() == {MDEV}
    life.release(A, (slot,), stopped)
    assert kernel.mdevs() == {}


@each_place
def test_after_a_reboot_of_the_host_it_is_made_again(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
    place: str,
) -> None:
    """Only the slot of a card has the uuid in Nova's database."""
    slot, trait, (parent, _) = CASES[place]
    life.host.refresh()
    life.restore(A, (slot,), (asks(trait),))
    (claim,) = life.ensure(A, (asks(trait),), (slot,))
    assert claim.parent == parent
    assert (claim.handle == MDEV) is (place == "card")
    assert kernel.mdevs().keys() == {claim.handle}


def test_a_foreign_mdev_on_a_vf_is_not_the_servers_of_its_slot(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
) -> None:
    """It is neither used nor removed, also if the server is cleaned up."""
    create(kernel, "VF")
    life.host.refresh()
    (claim,) = life.restore(A, (ON_VF,), (asks(EIGHT_Q),))
    assert claim.state is model.ClaimState.PLANNED
    with pytest.raises(errors.ClaimError, match="still holds"):
        life.ensure(A, (asks(EIGHT_Q),), (ON_VF,))
    life.release(A, (ON_VF,), stopped)
    life.clean_up()
    assert kernel.mdevs().keys() == {MDEV}


def test_the_mdev_of_another_domain_on_a_vf_is_not_the_servers(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
    libvirt: domains.SimulatedDomains,
) -> None:
    create(kernel, "VF")
    life.host.refresh()
    libvirt.set_use(held_by(B))
    (claim,) = life.restore(A, (ON_VF,), (asks(EIGHT_Q),))
    assert claim.state is model.ClaimState.PLANNED
    with pytest.raises(errors.ClaimError, match="a guest has it"):
        life.ensure(A, (asks(EIGHT_Q),), (ON_VF,))
    life.release(A, (ON_VF,), stopped)
    assert kernel.mdevs().keys() == {MDEV}


@each_place
def test_a_failed_removal_is_repeated_by_a_pass(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
    libvirt: domains.SimulatedDomains,
    place: str,
) -> None:
    slot, trait, _ = CASES[place]
    create(kernel, place)
    life.host.refresh()
    libvirt.set_use(held_by(A))
    life.restore(A, (slot,), (asks(trait),))
    kernel.fail("*/remove", "EBUSY")
    life.release(A, (slot,), stopped, domain=held_by(A))
    assert kernel.mdevs().keys() == {MDEV}
    kernel.heal()
    libvirt.set_use(connection.HostdevUse())
    life.clean_up()
    assert kernel.mdevs() == {}
