# SPDX-License-Identifier: Apache-2.0
"""Ownership of partitions, and orphans."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.claims import claim_plan
from nova_accel.model import names
from tests.support import strategies
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store, ownership

ROOT = strategies.ROOT
NOBODY = connection.HostdevUse()


def ours(host: model.HostState) -> set[str]:
    """Return the handles of all slots of a host, as their uuid5s."""
    return {
        names.mdev_uuid(slot.provider, slot.identifier)
        for device in host.devices
        if device.technology == "mdev"
        for slot in strategies.slots_of(device)
    }


def handles(host: model.HostState) -> list[str]:
    return [p.handle for d in host.devices for p in d.partitions]


def everything_claimed(host: model.HostState) -> tuple[model.Claim, ...]:
    slots = [s for d in host.devices for s in strategies.slots_of(d)]
    return claim_plan.find_existing("consumer", slots, ROOT, host)


@given(strategies.hosts(), st.data())
def test_orphans_are_ours_unclaimed_and_unused(
    host: model.HostState, data: st.DataObject
) -> None:
    held = everything_claimed(host)
    kept = data.draw(st.sets(st.sampled_from(held))) if held else set()
    present = handles(host)
    used = data.draw(st.frozensets(st.sampled_from(present or ["none"])))
    orphans = ownership.find_orphans(
        ROOT, host, kept, connection.HostdevUse(mdevs=used)
    )
    assert {p.handle for p in orphans} == (
        (set(present) & ours(host)) - used - {c.handle for c in kept}
    )
    assert set(orphans) <= {p for d in host.devices for p in d.partitions}


@given(strategies.hosts())
def test_what_claims_stand_for_is_no_orphan(host: model.HostState) -> None:
    assert (
        ownership.find_orphans(ROOT, host, everything_claimed(host), NOBODY)
        == ()
    )


@given(strategies.hosts(), strategies.uuids)
def test_another_node_s_partitions_are_not_ours(
    host: model.HostState, other: str
) -> None:
    """The same slots of the same addresses, under another compute node."""
    foreign = type(ROOT)(name="compute-2", uuid=other)
    if other != ROOT.uuid:
        assert ownership.find_orphans(foreign, host, (), NOBODY) == ()


@given(strategies.whole_devices())
def test_a_whole_function_is_never_an_orphan(device: model.Device) -> None:
    """Nobody made it, and so nobody takes it away."""
    assert not ownership.owned_handles(ROOT, device)


def test_a_claim_without_a_type_id_gets_the_one_known_before() -> None:
    """What was planned while the ids were unreadable can be cleared."""
    kept = claim_store.ClaimStore()
    typed = model.Claim(
        consumer="a server",
        provider="provider",
        device="0000:3d:00.0",
        profile="L40S-8Q",
        slot="0000:3d:00.5",
        parent="0000:3d:00.5",
        handle="0000:3d:00.5",
        technology="vendor-vfio",
        plugin="nvidia_vfio",
        type_id="1152",
    )
    bare = dataclasses.replace(typed, type_id="")
    kept.set_claims("a server", (typed,))
    kept.set_claims("a server", (bare,))
    assert kept.claims() == (typed,)
    kept.restore("a server", (), (bare,), (bare,))
    assert kept.made() == {typed.handle: typed}
    assert ownership.recorded_claim(typed, {bare.handle: bare}) == typed
    other = dataclasses.replace(bare, profile="L40S-4Q")
    kept.set_claims("a server", (other,))
    assert kept.claims() == (other,)
