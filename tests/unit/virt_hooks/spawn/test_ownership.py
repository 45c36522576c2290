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
IDLE = connection.HostdevUse()


def owned_handles(host: model.HostState) -> set[str]:
    """Return the handles of all slots of a host, as their uuid5s."""
    return {
        names.mdev_uuid(slot.provider, slot.identifier)
        for device in host.devices
        if device.technology == "mdev"
        for slot in strategies.slots_of(device)
    }


def handles(host: model.HostState) -> list[str]:
    return [p.handle for d in host.devices for p in d.partitions]


def claim_everything(host: model.HostState) -> tuple[model.Claim, ...]:
    slots = [s for d in host.devices for s in strategies.slots_of(d)]
    return claim_plan.find_existing("consumer", slots, ROOT, host)


@given(strategies.hosts(), st.data())
def test_orphans_are_owned_unclaimed_and_unused(
    host: model.HostState, data: st.DataObject
) -> None:
    claims = claim_everything(host)
    retained = data.draw(st.sets(st.sampled_from(claims))) if claims else set()
    present = handles(host)
    used = data.draw(st.frozensets(st.sampled_from(present or ["none"])))
    orphans = ownership.find_orphans(
        ROOT, host, retained, connection.HostdevUse(mdevs=used)
    )
    assert {p.handle for p in orphans} == (
        (set(present) & owned_handles(host))
        - used
        - {c.handle for c in retained}
    )
    assert set(orphans) <= {p for d in host.devices for p in d.partitions}


@given(strategies.hosts())
def test_a_claimed_partition_is_no_orphan(host: model.HostState) -> None:
    assert (
        ownership.find_orphans(ROOT, host, claim_everything(host), IDLE) == ()
    )


@given(strategies.hosts(), strategies.uuids)
def test_another_node_s_partitions_are_not_owned(
    host: model.HostState, other: str
) -> None:
    """The same slots of the same addresses, under another compute node."""
    foreign = type(ROOT)(name="compute-2", uuid=other)
    if other != ROOT.uuid:
        assert ownership.find_orphans(foreign, host, (), IDLE) == ()


@given(strategies.whole_devices())
def test_a_whole_function_is_never_an_orphan(device: model.Device) -> None:
    """No server created it, so the cleanup does not remove it."""
    assert not ownership.owned_handles(ROOT, device)


def test_a_claim_without_a_type_id_gets_the_former_one() -> None:
    """Claims that were planned while the ids were unreadable work, too."""
    store = claim_store.ClaimStore()
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
    store.set_claims("a server", (typed,))
    store.set_claims("a server", (bare,))
    assert store.claims() == (typed,)
    store.restore("a server", (), (bare,), (bare,))
    assert store.made() == {typed.handle: typed}
    assert ownership.recorded_claim(typed, {bare.handle: bare}) == typed
    other = dataclasses.replace(bare, profile="L40S-4Q")
    store.set_claims("a server", (other,))
    assert store.claims() == (other,)
