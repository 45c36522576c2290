# SPDX-License-Identifier: Apache-2.0
"""Room stays reserved for claims whose partitions a reboot removed."""

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from tests.lab import fakehost
from tests.support import strategies
from tests.support.hosts import simulated, simulated_vfio
from virt_hooks.spawn import lifecycle

SMALL = "CUSTOM_VGPU_NVIDIA_T4_1Q"
RULES = policy.DeviceRules()


def nodes(
    life: lifecycle.Lifecycle, claims: tuple[model.Claim, ...]
) -> tuple[providers.ProviderNode, ...]:
    tree = tree_builder.build_tree(
        simulated.ROOT, life.host.state, RULES, claims
    )
    return tree.nodes


def planned(claims: tuple[model.Claim, ...]) -> tuple[model.Claim, ...]:
    return tuple(
        dataclasses.replace(claim, state=model.ClaimState.PLANNED)
        for claim in claims
    )


@pytest.mark.parametrize(
    "traits_of_servers",
    [
        [simulated.FOUR_Q],
        [simulated.EIGHT_Q, simulated.EIGHT_Q],
        [SMALL] * 3,
        [simulated.MTTY] * 2,
    ],
    ids=("one", "full", "three", "mtty"),
)
def test_a_reboot_does_not_change_inventories(
    kernel: fakehost.Controller, traits_of_servers: list[str]
) -> None:
    life = simulated.started(kernel)
    device = "mtty" if simulated.MTTY in traits_of_servers else simulated.GPU
    for number, trait in enumerate(traits_of_servers):
        life.ensure(
            f"server-{number}",
            (simulated.asks(trait),),
            (simulated.slot(number, device),),
        )
    before = nodes(life, life.claims())
    claims = planned(life.claims())
    kernel.reboot()
    again = simulated.started(kernel)
    assert not kernel.mdevs()
    assert nodes(again, claims) == before
    # mtty's ports are equal: nothing is withheld for partitions of others.
    assert (nodes(again, ()) == before) is (device == "mtty")


@pytest.fixture(scope="module")
def l40s(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    spec = fakehost.HostSpec(
        cards=(
            fakehost.NvidiaGpu(
                address=simulated_vfio.GPU,
                model="L40S",
                interface="vfio",
                total_vfs=4,
                enabled_vfs=4,
                mixed=True,
            ),
        )
    )
    root = tmp_path_factory.mktemp("l40s")
    with fakehost.simulated_sysfs(spec, root) as controller:
        yield controller


def test_a_reboot_does_not_change_inventories_of_typed_vfs(
    l40s: fakehost.Controller, own_rights: None
) -> None:
    del own_rights
    life = simulated_vfio.started(l40s)
    for server, function in (
        ("one", simulated_vfio.FIRST),
        ("two", simulated_vfio.SECOND),
    ):
        life.ensure(
            server,
            (simulated_vfio.asks(),),
            (simulated_vfio.slot(function),),
        )
    before = nodes(life, life.claims())
    claims = planned(life.claims())
    l40s.reboot()
    again = simulated_vfio.started(l40s)
    assert not simulated_vfio.types(l40s)
    assert nodes(again, claims) == before


@given(
    st.one_of(strategies.mdev_devices(), strategies.whole_devices()), st.data()
)
def test_existing_partitions_are_not_reserved_again(
    device: model.Device, data: st.DataObject
) -> None:
    """Claims of existing partitions or other devices reserve nothing."""
    claims = [
        dataclasses.replace(
            _claim(device, partition.profile, partition.handle),
            state=data.draw(st.sampled_from(model.ClaimState)),
        )
        for partition in device.partitions
    ]
    stranger = _claim(device, "any", "other")
    claims.append(dataclasses.replace(stranger, device="another"))
    claims.append(dataclasses.replace(stranger, state=model.ClaimState.MADE))
    assert device_capacity.reserve_claims(device, claims) is device


@given(
    st.one_of(strategies.mdev_devices(), strategies.whole_devices()), st.data()
)
def test_reserved_room_is_not_offered(
    device: model.Device, data: st.DataObject
) -> None:
    """A reserved profile takes the same room as an existing one."""
    device = device_capacity.recalculate(device)
    available = [p.name for p in device.profiles if p.available > 0]
    if not available:
        return
    name = data.draw(st.sampled_from(available))
    reserved = device_capacity.reserve_claims(
        device, [_claim(device, name, "held")]
    )
    if device.technology == "passthrough":
        assert reserved is device
        return
    assert [p.handle for p in reserved.partitions[-1:]] == ["held"]
    for profile in reserved.profiles:
        before = device.profile(profile.name)
        assert before is not None
        assert 0 <= profile.available <= before.available
    fewer = reserved.profile(name)
    assert fewer is not None
    assert fewer.available < device.profile(name).available  # type: ignore[union-attr]


def _claim(device: model.Device, profile: str, handle: str) -> model.Claim:
    choice = (
        device_capacity.choose_place(device, profile)
        or device_capacity.PartitionPlace()
    )
    return model.Claim(
        consumer="server",
        provider=names.provider_uuid(simulated.ROOT.uuid, device.address),
        device=device.address,
        profile=profile,
        slot="slot",
        parent=device.address,
        handle=handle,
        technology=device.technology,
        plugin=device.plugin,
        start=choice.start,
        instance_start=choice.instance_start,
    )
