# SPDX-License-Identifier: Apache-2.0
"""Types of a full card are known after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.sysfs import fs
from tests.hosts import vgpu_config
from tests.lab import fakehost
from tests.support.hosts import simulated_vfio
from tests.support.hosts.simulated import A, B, node, stopped
from tests.support.hosts.simulated_vfio import (
    FIRST,
    GPU,
    SECOND,
    asks,
    slot,
    started,
    types,
)
from virt_hooks.spawn import lifecycle

BIG = "CUSTOM_VGPU_NVIDIA_L40S_24Q"
OTHER = "CUSTOM_VGPU_NVIDIA_L40S_24A"
#: The type's number in this driver release.
NUMBER = "1155"
HELD = {A: FIRST, B: SECOND}
THIRD = "0000:3d:00.6"
# One L40S, and no NVML.
SPEC = fakehost.HostSpec(cards=simulated_vfio.SPEC.cards[:1])


@pytest.fixture
def full(kernel: fakehost.Controller) -> dict[str, tuple[model.Claim, ...]]:
    """Fill the card with two servers; return their claims."""
    life = started(kernel)
    return {
        server: life.ensure(server, (asks(BIG),), (slot(function),))
        for server, function in HELD.items()
    }


@pytest.fixture(params=["the driver's table", "the flavor"])
def again(
    kernel: fakehost.Controller,
    full: dict[str, tuple[model.Claim, ...]],
    request: pytest.FixtureRequest,
) -> Iterator[lifecycle.Lifecycle]:
    """Return the service after a restart, its servers restored."""
    place = Path(f"{kernel.root}{fs.VGPU_CONFIG}")
    if request.param == "the driver's table":
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(vgpu_config.text({NUMBER: "NVIDIA L40S-24Q"}))
    life = started(kernel)
    for server, function in HELD.items():
        (claim,) = life.restore(server, (slot(function),))
        assert (claim.handle, claim.type_id) == (function, NUMBER)
    life.clean_up()
    yield life
    place.unlink(missing_ok=True)


def test_a_hard_reboot_finds_its_own(
    kernel: fakehost.Controller,
    full: dict[str, tuple[model.Claim, ...]],
    again: lifecycle.Lifecycle,
) -> None:
    written = kernel.writes()
    for _ in range(2):
        for server, function in HELD.items():
            claims = again.ensure(server, (asks(BIG),), (slot(function),))
            assert claims == full[server]
    assert kernel.writes() == written
    assert types(kernel) == {FIRST: NUMBER, SECOND: NUMBER}


def test_their_vfs_can_be_cleared(
    kernel: fakehost.Controller, again: lifecycle.Lifecycle
) -> None:
    empty = node(again, GPU)
    again.ensure(A, (asks(BIG),), (slot(FIRST),))
    for server, function in HELD.items():
        again.release(server, (slot(function),), stopped)
    assert types(kernel) == {}
    assert again.claims() == ()
    assert BIG in node(again, GPU).traits - empty.traits


def test_no_other_server_gets_it(
    kernel: fakehost.Controller, again: lifecycle.Lifecycle
) -> None:
    with pytest.raises(errors.ClaimError):
        again.ensure("other", (asks(BIG),), (slot(THIRD),))
    assert types(kernel) == {FIRST: NUMBER, SECOND: NUMBER}


def test_a_slot_that_was_never_restored_is_not_assigned(
    kernel: fakehost.Controller, full: dict[str, tuple[model.Claim, ...]]
) -> None:
    """The flavor shows the type, but not the owner."""
    life = started(kernel)
    with pytest.raises(errors.ClaimError, match="clear it by hand"):
        life.ensure("other", (asks(BIG),), (slot(FIRST),))
    assert types(kernel) == {FIRST: NUMBER, SECOND: NUMBER}


def test_a_type_with_another_known_number_is_refused(
    kernel: fakehost.Controller, full: dict[str, tuple[model.Claim, ...]]
) -> None:
    """The table has another number for this type, so the VF's differs."""
    place = Path(f"{kernel.root}{fs.VGPU_CONFIG}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(vgpu_config.text({"1165": "NVIDIA L40S-24A"}))
    life = started(kernel)
    life.restore(A, (slot(FIRST),))
    with pytest.raises(errors.ActionError, match="it holds type 1155"):
        life.ensure(A, (asks(OTHER),), (slot(FIRST),))
    place.unlink()
    assert types(kernel) == {FIRST: NUMBER, SECOND: NUMBER}
