# SPDX-License-Identifier: Apache-2.0
"""Accelerators of migrating servers are checked on both hosts.

Both hosts of a move are on one kernel, each with a provider tree and a card
of its own.
"""

import dataclasses

import pytest

from nova_accel import errors, model
from nova_accel.claims import migration
from nova_accel.model import names, providers
from tests.lab import fakehost
from tests.support.hosts import simulated
from tests.support.hosts.simulated import (
    FOUR_Q,
    GPU,
    MTTY,
    OTHER,
    A,
    asks,
    slot,
)
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations.migration import (
    live_migration_checks,
    migration_partitions,
)
from virt_hooks.spawn import lifecycle

THERE = providers.ProviderRoot(
    name="compute-2", uuid="2f2e3d4c-0000-4000-8000-000000000002"
)
LIMITS = migration.MigrationLimits(downtime=500)
SERVER = instance_request.InstanceRequest(
    uuid=A, groups=(asks(FOUR_Q),), slots=(slot(),)
)
COMING = dataclasses.replace(
    SERVER,
    slots=(
        model.Slot(
            provider=names.provider_uuid(THERE.uuid, OTHER),
            resource_class=names.GPU_CLASS,
            identifier="slot-3",
        ),
    ),
)
Partitions = migration_partitions.MigrationPartitions

FLAT = libvirt_guest.GuestLayouts()


@pytest.fixture
def facts(kernel: fakehost.Controller) -> migration_partitions.HostAbilities:
    return migration_partitions.HostAbilities(str(kernel.root))


@pytest.fixture
def host(
    facts: migration_partitions.HostAbilities,
) -> migration.MigrationHost:
    return facts.read_host(10_000_000, 8_002_002, False)


@pytest.fixture
def here(
    life: lifecycle.Lifecycle, facts: migration_partitions.HostAbilities
) -> Partitions:
    life.ensure(A, SERVER.groups, SERVER.slots)
    return Partitions(life, facts, FLAT)


@pytest.fixture
def there(
    kernel: fakehost.Controller, facts: migration_partitions.HostAbilities
) -> tuple[Partitions, lifecycle.Lifecycle]:
    other = simulated.started(kernel)
    other.adopt(THERE)
    other.host.refresh()
    return Partitions(other, facts, FLAT), other


def use(life: lifecycle.Lifecycle, *others: str) -> connection.HostdevUse:
    claimed = {claim.handle for claim in life.claims()}
    return connection.HostdevUse(mdevs=frozenset({*claimed, *others}))


def test_abilities_of_a_host(
    kernel: fakehost.Controller, facts: migration_partitions.HostAbilities
) -> None:
    kernel.write_kernel_release("6.12.107+deb13-amd64")
    host_facts = facts.read_host(8_006_000, 10_001_003, True)
    assert host_facts.libvirt == (8, 6, 0)
    assert host_facts.qemu == (10, 1, 3)
    assert host_facts.drivers == {"nvidia": "570.133.10", "mtty": ""}
    assert host_facts.has_post_copy
    assert host_facts.kernel == "6.12.107+deb13-amd64"
    assert facts.read_host(0, -1, False).libvirt == ()
    assert facts.has_iommufd()
    assert not migration_partitions.HostAbilities("/nowhere").has_iommufd()


def test_drivers_of_functions(
    facts: migration_partitions.HostAbilities,
) -> None:
    assert facts.read_driver(GPU) == "nvidia"
    assert facts.read_driver("0000:ff:00.0") == ""
    assert (
        migration_partitions.HostAbilities("/nowhere").read_driver(GPU) == ""
    )


def test_the_whole_way(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    here: Partitions,
    there: tuple[Partitions, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    partitions, other = there
    before = kernel.mdevs()
    offers = partitions.describe_offers(SERVER, host)
    departure = here.describe_departure(
        SERVER, use(life), host, LIMITS, offers
    )
    partitions.verify_arrival(COMING, host, departure, {})
    assert kernel.mdevs() == before

    pairs = partitions.make_partitions(COMING, departure, {})
    (old,), (new,) = life.claims(), other.claims()
    assert pairs == live_migration_checks.HandlePairs(
        mdevs={old.handle: new.handle}, functions={}
    )
    assert kernel.mdevs()[new.handle]["type"] == "nvidia-232"
    # Once more: the same.
    assert partitions.make_partitions(COMING, departure, {}) == pairs


def refused(
    here: Partitions,
    host: migration.MigrationHost,
    use: connection.HostdevUse,
    server: instance_request.InstanceRequest = SERVER,
    offers: str | None = None,
) -> str:
    with pytest.raises(errors.ClaimError) as caught:
        here.describe_departure(server, use, host, LIMITS, offers)
    return caught.value.reason


def test_an_unclaimed_mdev(
    life: lifecycle.Lifecycle, here: Partitions, host: migration.MigrationHost
) -> None:
    """Nova's own, or one attached by hand."""
    reason = refused(here, host, use(life, "an-mdev"))
    assert "also has mdev an-mdev" in reason


def test_a_guest_that_lost_its_device(
    life: lifecycle.Lifecycle, here: Partitions, host: migration.MigrationHost
) -> None:
    (claim,) = life.claims()
    reason = refused(here, host, connection.HostdevUse())
    assert f"does not have {claim.handle}" in reason
    assert "reboot it hard" in reason


def test_unknown_slots(
    life: lifecycle.Lifecycle, here: Partitions, host: migration.MigrationHost
) -> None:
    two = dataclasses.replace(SERVER, slots=(slot(), slot(1)))
    reason = refused(here, host, use(life), two)
    assert "are unknown" in reason


def test_a_destination_without_nova_accel(
    life: lifecycle.Lifecycle, here: Partitions, host: migration.MigrationHost
) -> None:
    assert "does not run nova-accel" in refused(here, host, use(life))


def test_a_destination_without_the_card(
    life: lifecycle.Lifecycle,
    here: Partitions,
    there: tuple[Partitions, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    wants = instance_request.InstanceRequest(uuid=A, groups=(asks(MTTY),))
    offers = there[0].describe_offers(wants, host)
    reason = refused(here, host, use(life), offers=offers)
    assert "no card that makes T4-4Q" in reason


def test_offers_of_another_form(
    life: lifecycle.Lifecycle, here: Partitions, host: migration.MigrationHost
) -> None:
    with pytest.raises(errors.MalformedError):
        here.describe_departure(SERVER, use(life), host, LIMITS, "nvidia-222")


def test_a_destination_without_slots(
    life: lifecycle.Lifecycle,
    here: Partitions,
    there: tuple[Partitions, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    partitions, _ = there
    offers = partitions.describe_offers(SERVER, host)
    departure = here.describe_departure(
        SERVER, use(life), host, LIMITS, offers
    )
    none = dataclasses.replace(COMING, slots=())
    with pytest.raises(errors.ClaimError) as caught:
        partitions.verify_arrival(none, host, departure, {})
    assert "claimed no slot on this host" in caught.value.reason
