# SPDX-License-Identifier: Apache-2.0
"""Each claim of a server gets a place on its device."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.geometry import device_capacity
from nova_accel.model import names
from tests.support import strategies
from tests.support.hosts import shapes
from tests.support.scheduler import brute_force

CONSUMER = "5c1d5a2e-7f2c-4f6e-9d4e-2b6f5a0c9d11"
ROOT = strategies.ROOT
PROVIDER = names.provider_uuid(ROOT.uuid, shapes.ADDRESS)

MIXED = dataclasses.replace(
    shapes.card(
        model.Geometry(layout=model.Layout.MIXED, region=8),
        shapes.profile("P-1", span=1, size=1, starts=(0, 2, 4, 5, 6)),
        shapes.profile("P-4", span=4, size=4, starts=(0, 4)),
        slots=8,
    ),
    is_managed=False,
    vgpu_params="disable_vnc=1",
)
MIG = shapes.card(
    model.Geometry(
        layout=model.Layout.MIG, region=4, kinds=shapes.KINDS, is_dynamic=True
    ),
    *(
        shapes.profile(f"M-{k.name}", 8, size=k.size, instance=k.name)
        for k in shapes.KINDS
    ),
    slots=8,
    counters={names.MIG_SLICE_CLASS: 3},
)


def handled(device: model.Device) -> model.Device:
    """Return the device with every slot knowing every profile."""
    return dataclasses.replace(
        device,
        profiles=tuple(
            dataclasses.replace(
                p, handles=dict.fromkeys(device.slots, f"id-{p.name}")
            )
            for p in device.profiles
        ),
    )


def plan(
    device: model.Device, *profiles: str, first: int = 0
) -> tuple[model.Claim, ...]:
    """Return the claims of a server with consecutive slots."""
    groups = []
    for number, name in enumerate(profiles):
        profile = device.profile(name)
        assert profile is not None
        groups.append(strategies.group(f"_{number}", device, profile))
    slots = strategies.slots_of(device)[first : first + len(profiles)]
    host = model.HostState(devices=(device,))
    return claim_plan.plan(CONSUMER, groups, slots, ROOT, host)


def made(
    device: model.Device, claims: tuple[model.Claim, ...]
) -> model.Device:
    """Return the device once the claims are made, as a driver reads it.

    Earlier partitions with these handles are removed, and so are empty
    instances that were made for claims.
    """
    for claim in claims:
        if claim.state is model.ClaimState.MADE:
            continue
        device = device_capacity.remove_partitions(device, {claim.handle})
        choice = device_capacity.PartitionPlace(
            start=claim.start, instance_start=claim.instance_start
        )
        device = device_capacity.add_partition(device, claim.profile, choice)
        device = dataclasses.replace(
            device,
            partitions=(
                *device.partitions[:-1],
                dataclasses.replace(
                    device.partitions[-1],
                    handle=claim.handle,
                    parent=claim.parent,
                ),
            ),
        )
    return device_capacity.recalculate(device)


def test_a_claim_has_the_facts_that_its_driver_needs() -> None:
    (claim,) = plan(handled(MIXED), "P-4", first=3)
    assert claim == model.Claim(
        consumer=CONSUMER,
        provider=PROVIDER,
        device=shapes.ADDRESS,
        profile="P-4",
        slot=MIXED.slots[3],
        parent=MIXED.slots[3],
        handle=MIXED.slots[3],
        technology="vendor-vfio",
        plugin="test",
        type_id="id-P-4",
        is_managed=False,
        vgpu_params="disable_vnc=1",
        start=0,
    )


def test_the_largest_is_placed_first_and_slots_stay_in_order() -> None:
    claims = plan(handled(MIXED), "P-1", "P-4", "P-1")
    assert [c.slot for c in claims] == list(MIXED.slots[:3])
    assert sorted((c.profile, c.start) for c in claims) == [
        ("P-1", 4), ("P-1", 5), ("P-4", 0),
    ]  # fmt: skip


def test_an_instance_is_planned_only_where_none_has_room() -> None:
    (claim,) = plan(handled(MIG), "M-2g")
    assert (claim.instance, claim.instance_start) == ("2g", 0)
    assert claim.owns_instance
    empty = dataclasses.replace(
        MIG.geometry,
        instances=(
            model.Instance(
                kind="2g", handle="7", span=model.Span(start=2, size=2)
            ),
        ),
    )
    standing = dataclasses.replace(MIG, geometry=empty)
    (claim,) = plan(handled(standing), "M-2g")
    assert (claim.instance, claim.instance_start) == ("2g", None)


def test_an_instance_that_the_operator_made_is_not_owned() -> None:
    standing = dataclasses.replace(
        MIG,
        geometry=dataclasses.replace(
            MIG.geometry,
            is_dynamic=False,
            instances=(model.Instance(kind="2g", handle="7"),),
        ),
    )
    (claim,) = plan(handled(standing), "M-2g")
    assert (claim.instance, claim.owns_instance) == ("2g", False)


def holding(device: model.Device, *parts: model.Partition) -> model.Device:
    """Return the recalculated device with some of its VFs typed."""
    return handled(
        device_capacity.recalculate(
            dataclasses.replace(device, partitions=parts)
        )
    )


def test_a_typed_vf_in_the_slot_is_made_and_takes_nothing_new() -> None:
    device = holding(MIXED, shapes.partition("P-4", 0, start=4))
    (claim,) = plan(device, "P-4")
    assert claim.state is model.ClaimState.MADE
    assert claim.start == 4
    # There is room for one more beside it, in any slot.
    both = plan(device, "P-4", "P-4")
    assert [c.start for c in both] == [4, 0]


def test_a_stale_partition_in_the_slot_takes_no_place() -> None:
    """Two of P-4 fill the card; the one in the slot is removed first."""
    device = holding(
        MIXED,
        shapes.partition("P-4", 0, start=0),
        shapes.partition("P-4", 1, start=4),
    )
    assert device_capacity.remaining(device)["P-1"] == 0
    (claim,) = plan(device, "P-1", first=1)
    assert claim.state is model.ClaimState.PLANNED
    assert claim.start is not None
    assert claim.start >= 4
    with pytest.raises(errors.ClaimError, match="no more P-1"):
        plan(device, "P-1", first=2)


def test_the_size_of_a_stale_partition_does_not_count() -> None:
    equal = shapes.card(
        model.Geometry(layout=model.Layout.EQUAL),
        shapes.profile("P-1", size=1, limit=8),
        shapes.profile("P-8", size=8, limit=1),
        slots=8,
    )
    device = holding(equal, shapes.partition("P-8", 0))
    assert device_capacity.remaining(device)["P-1"] == 0
    claims = plan(device, "P-1", "P-1", "P-1")
    assert {c.state for c in claims} == {model.ClaimState.PLANNED}


def test_a_partition_that_is_made_again_keeps_its_instance() -> None:
    """A claim from a partition owns the instance of the partition."""
    after = made(handled(MIG), plan(handled(MIG), "M-2g"))
    (again,) = plan(after, "M-2g")
    assert again.state is model.ClaimState.MADE
    assert again.instance_start == 0
    assert claim_plan.claim_from_partition(
        after, after.partitions[0]
    ).owns_instance


def test_an_undivided_function_is_its_own_slot() -> None:
    device = dataclasses.replace(
        shapes.card(model.Geometry(), shapes.profile("vf", 8), slots=8),
        technology="vf",
    )
    (claim,) = plan(device, "vf", first=2)
    assert claim.parent == claim.handle == claim.slot == device.slots[2]
    host = model.HostState(devices=(device,))
    slots = strategies.slots_of(device)[2:3]
    (existing,) = claim_plan.find_existing(CONSUMER, slots, ROOT, host)
    assert existing == dataclasses.replace(claim, state=model.ClaimState.MADE)
    gone = dataclasses.replace(slots[0], identifier="0000:3b:1f.7")
    assert claim_plan.find_existing(CONSUMER, [gone], ROOT, host) == ()


# -- laws ------------------------------------------------------------------


@given(shapes.any_cards, st.data())
def test_claims_of_one_server_fit_beside_each_other(
    device: model.Device, data: st.DataObject
) -> None:
    device = handled(device_capacity.recalculate(apart(device)))
    profiles = data.draw(
        st.lists(
            st.sampled_from([p.name for p in device.profiles]),
            min_size=1,
            max_size=4,
        )
    )
    try:
        claims = plan(device, *profiles, first=24)
    except errors.ClaimError:
        return
    assert claims == plan(device, *profiles, first=24)
    assert sorted(c.profile for c in claims) == sorted(profiles)
    after = made(device, claims)
    if device.geometry.layout is model.Layout.MIXED:
        brute_force.units(after)
    if device.geometry.layout is model.Layout.MIG:
        brute_force.slices(after)
    again = plan(after, *profiles, first=24)
    assert {c.state for c in again} == {model.ClaimState.MADE}
    assert sorted(plain(again)) == sorted(plain(claims))


def apart(device: model.Device) -> model.Device:
    """Return the device with slots that hold no partition."""
    return dataclasses.replace(
        device,
        slots=tuple(f"0000:3b:1{n // 8}.{n % 8}" for n in range(32)),
    )


def plain(claims: tuple[model.Claim, ...]) -> list[tuple[str, str, str]]:
    return [(c.slot, c.profile, str(c.start)) for c in claims]


# -- types without a name ---------------------------------------------------

NAMELESS = model.Partition(
    profile="type-7",
    parent=MIXED.slots[0],
    handle=MIXED.slots[0],
    is_nameless=True,
)
NUMBERED = dataclasses.replace(
    MIXED,
    profiles=(
        *MIXED.profiles,
        dataclasses.replace(
            shapes.profile("type-7", 0), handles={NAMELESS.parent: "7"}
        ),
    ),
    partitions=(NAMELESS,),
)


def test_a_partition_without_a_type_name_has_the_claims_profile() -> None:
    (claim,) = plan(NUMBERED, "P-4")
    assert claim.state is model.ClaimState.MADE
    assert (claim.profile, claim.type_id) == ("P-4", "7")
    assert claim.handle == NAMELESS.handle


@pytest.mark.parametrize(
    "device",
    [
        dataclasses.replace(
            NUMBERED,
            partitions=(dataclasses.replace(NAMELESS, is_nameless=False),),
        ),
        dataclasses.replace(
            NUMBERED,
            profiles=handled(MIXED).profiles + NUMBERED.profiles[-1:],
        ),
    ],
    ids=["it has a name", "another number is requested"],
)
def test_other_partitions_do_not_get_the_claims_profile(
    device: model.Device,
) -> None:
    (claim,) = plan(device, "P-4")
    assert claim.state is model.ClaimState.PLANNED
