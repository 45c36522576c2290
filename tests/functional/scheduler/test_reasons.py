# SPDX-License-Identifier: Apache-2.0
"""The fault of a server names the reason for which no card fits."""

import fixtures
import pytest
from nova import exception

from nova_accel.model import names
from tests.functional.scheduler import scheduling
from tests.functional.scheduler.scheduling import (
    Cloud,
    Scheduler,
    flavor_specs,
)

scheduler = scheduling.scheduler
log = scheduling.log


def refusal_of(scheduler: Scheduler, specs: dict[str, str]) -> str:
    with pytest.raises(exception.NoValidHost) as caught:
        scheduler.boot(specs)
    return str(caught.value.format_message())


def test_when_every_card_is_full_the_fault_says_so(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=2)
    cloud.take(cards["a"], 2)

    fault = refusal_of(scheduler, flavor_specs())

    assert fault == (
        "No valid host was found. Scheduling failed: no accelerator has room"
        " for CUSTOM_MDEV 1 with CUSTOM_MDEV_MTTY_2"
    )
    assert "CUSTOM_MDEV 0 of 2 left on 1" in log.output
    assert "labvm_accel_a: CUSTOM_MDEV 0 of 2 left, 1 needed" in log.output
    assert "accelerator group '_A'" in log.output


def test_when_a_profile_is_not_offered_the_fault_says_so(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=2)
    cloud.take(cards["a"], 3)
    for card in cards.values():
        cloud.set_traits(card, names.OWNER_TRAIT)

    fault = refusal_of(scheduler, flavor_specs())

    assert fault.endswith("offers CUSTOM_MDEV with CUSTOM_MDEV_MTTY_2 now")
    assert "CUSTOM_MDEV 3 of 6 left on 2, at most 2 on one" in log.output
    assert (
        "labvm_accel_a: does not offer CUSTOM_MDEV_MTTY_2 now; labvm_accel_b: "
    ) in log.output


def test_when_no_card_has_the_class_the_fault_says_so(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cloud.add_host("labvm", a=2)

    fault = refusal_of(scheduler, {"resources_G:VGPU": "1"})

    assert fault.endswith("no accelerator offers VGPU")


def test_the_unsuffixed_group_is_refused_only_for_its_accelerators(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    root, cards = cloud.add_host("labvm", a=2)
    cloud.set_traits(root, "HW_CPU_X86_AVX2")
    specs = {
        "resources:CUSTOM_MDEV": "1",
        "trait:HW_CPU_X86_AVX2": "required",
    }

    (server,) = scheduler.boot(specs)

    assert cloud.list_mdevs(server) == {cards["a"]: 1}
    cloud.take(cards["a"], 1)
    assert "has room for CUSTOM_MDEV 1" in refusal_of(scheduler, specs)


@pytest.mark.parametrize(
    ("specs", "name"),
    [
        (flavor_specs(profile="CUSTOM_MDEV_TYPO"), "CUSTOM_MDEV_TYPO"),
        ({"resources_A:CUSTOM_MIG_SLICE": "1"}, "CUSTOM_MIG_SLICE"),
    ],
)
def test_a_name_that_placement_never_stored_is_named(
    cloud: Cloud, scheduler: Scheduler, specs: dict[str, str], name: str
) -> None:
    cloud.add_host("labvm", a=2)

    assert f"ever offered {name}; check" in refusal_of(scheduler, specs)


def test_further_refusals_cost_only_novas_own_query(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=2)
    cloud.take(cards["a"], 2)
    fault = refusal_of(scheduler, flavor_specs())
    cloud.read_paths.clear()

    assert refusal_of(scheduler, flavor_specs()) == fault
    assert len(cloud.read_paths) == 1


def test_a_reason_reads_a_part_of_the_cloud(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    for number in range(33):
        _, cards = cloud.add_host(f"host{number:02d}", a=1)
        cloud.take(cards["a"], 1)

    fault = refusal_of(scheduler, flavor_specs())

    assert fault.endswith("has room for CUSTOM_MDEV 1 with CUSTOM_MDEV_MTTY_2")
    assert "only some hosts were read; CUSTOM_MDEV 0 of 32 left" in log.output
    listed = [p for p in cloud.read_paths if p.startswith("/resource_prov")]
    assert len(listed) == 4
    assert all("in_tree=" in path for path in listed)
    assert not [
        path
        for path in cloud.read_paths
        if names.OWNER_TRAIT in path
        if path not in listed and "limit=" not in path
    ]


def test_pinned_cpus_are_requested_twice_before_a_refusal(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    """Nova searches for hosts without dedicated CPUs, too."""
    _, cards = cloud.add_host("labvm", a=2)
    pinned = {"hw:cpu_policy": "dedicated"}

    (server,) = scheduler.boot(flavor_specs() | pinned)

    assert cloud.list_mdevs(server) == {cards["a"]: 1}
    assert sum("allocation_candidates" in p for p in cloud.read_paths) == 2
    cloud.take(cards["a"], 1)
    fault = refusal_of(scheduler, flavor_specs() | pinned)
    assert "no accelerator has room" in fault
