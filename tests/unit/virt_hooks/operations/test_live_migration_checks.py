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
from virt_hooks.guest import connection
from virt_hooks.operations import live_migration_checks, live_migration_facts
from virt_hooks.spawn import lifecycle

THERE = providers.ProviderRoot(
    name="compute-2", uuid="2f2e3d4c-0000-4000-8000-000000000002"
)
LIMITS = migration.MigrationLimits(downtime=500)
SERVER = live_migration_checks.MigratingServer(
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
Passage = live_migration_checks.MigrationChecks


@pytest.fixture
def facts(kernel: fakehost.Controller) -> live_migration_facts.HostAbilities:
    return live_migration_facts.HostAbilities(str(kernel.root))


@pytest.fixture
def host(facts: live_migration_facts.HostAbilities) -> migration.MigrationHost:
    found = facts.read_host(10_000_000, 8_002_002, False)
    return dataclasses.replace(found, kernel="6.8.0")


@pytest.fixture
def here(
    life: lifecycle.Lifecycle, facts: live_migration_facts.HostAbilities
) -> Passage:
    life.ensure(A, SERVER.groups, SERVER.slots)
    return Passage(life, facts)


@pytest.fixture
def there(
    kernel: fakehost.Controller, facts: live_migration_facts.HostAbilities
) -> tuple[Passage, lifecycle.Lifecycle]:
    other = simulated.started(kernel)
    other.adopt(THERE)
    other.host.refresh()
    return Passage(other, facts), other


def use(life: lifecycle.Lifecycle, *more: str) -> connection.HostdevUse:
    held = {claim.handle for claim in life.claims()}
    return connection.HostdevUse(mdevs=frozenset({*held, *more}))


def test_what_is_read_of_a_host(
    facts: live_migration_facts.HostAbilities,
) -> None:
    found = facts.read_host(8_006_000, 10_001_003, True)
    assert found.libvirt == (8, 6, 0)
    assert found.qemu == (10, 1, 3)
    assert found.drivers == {"nvidia": "570.133.10", "mtty": ""}
    assert found.has_post_copy
    assert found.kernel
    assert facts.read_host(0, -1, False).libvirt == ()


def test_drivers_of_functions(
    facts: live_migration_facts.HostAbilities,
) -> None:
    assert facts.read_driver(GPU) == "nvidia"
    assert facts.read_driver("0000:ff:00.0") == ""
    assert (
        live_migration_facts.HostAbilities("/nowhere").read_driver(GPU) == ""
    )


def test_the_whole_way(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    here: Passage,
    there: tuple[Passage, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    passage, other = there
    before = kernel.mdevs()
    offers = passage.describe_offers(SERVER, host)
    told = here.check_departure(SERVER, use(life), host, LIMITS, offers)
    passage.check_arrival(COMING, host, told)
    assert kernel.mdevs() == before
    assert passage.expected() == frozenset()

    pairs = passage.make_partitions(COMING, told)
    (old,), (new,) = life.claims(), other.claims()
    assert pairs == live_migration_checks.HandlePairs(
        mdevs={old.handle: new.handle}, functions={}
    )
    assert kernel.mdevs()[new.handle]["type"] == "nvidia-232"
    assert passage.expected() == {A}
    # Once more: the same.
    assert passage.make_partitions(COMING, told) == pairs
    passage.end_arrival(A)
    assert passage.expected() == frozenset()


def refused(
    here: Passage,
    host: migration.MigrationHost,
    use: connection.HostdevUse,
    server: live_migration_checks.MigratingServer = SERVER,
    told: str | None = None,
) -> str:
    with pytest.raises(errors.ClaimError) as caught:
        here.check_departure(server, use, host, LIMITS, told)
    return caught.value.reason


def test_an_mdev_that_nobody_claimed(
    life: lifecycle.Lifecycle, here: Passage, host: migration.MigrationHost
) -> None:
    """Nova's own, or one attached by hand."""
    reason = refused(here, host, use(life, "an-mdev"))
    assert "also has mdev an-mdev" in reason


def test_a_guest_that_lost_what_it_holds(
    life: lifecycle.Lifecycle, here: Passage, host: migration.MigrationHost
) -> None:
    (claim,) = life.claims()
    reason = refused(here, host, connection.HostdevUse())
    assert f"does not have {claim.handle}" in reason
    assert "reboot it hard" in reason


def test_slots_of_which_nothing_is_known(
    life: lifecycle.Lifecycle, here: Passage, host: migration.MigrationHost
) -> None:
    two = dataclasses.replace(SERVER, slots=(slot(), slot(1)))
    reason = refused(here, host, use(life), two)
    assert "are unknown" in reason


def test_a_destination_that_says_nothing(
    life: lifecycle.Lifecycle, here: Passage, host: migration.MigrationHost
) -> None:
    assert "does not run nova-accel" in refused(here, host, use(life))


def test_a_destination_without_the_card(
    life: lifecycle.Lifecycle,
    here: Passage,
    there: tuple[Passage, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    wants = live_migration_checks.MigratingServer(uuid=A, groups=(asks(MTTY),))
    offers = there[0].describe_offers(wants, host)
    reason = refused(here, host, use(life), told=offers)
    assert "no card that makes T4-4Q" in reason


def test_a_word_of_another_form(
    life: lifecycle.Lifecycle, here: Passage, host: migration.MigrationHost
) -> None:
    with pytest.raises(errors.MalformedError):
        here.check_departure(SERVER, use(life), host, LIMITS, "nvidia-222")


def test_what_nova_did_not_claim(
    life: lifecycle.Lifecycle,
    here: Passage,
    there: tuple[Passage, lifecycle.Lifecycle],
    host: migration.MigrationHost,
) -> None:
    passage, _ = there
    offers = passage.describe_offers(SERVER, host)
    told = here.check_departure(SERVER, use(life), host, LIMITS, offers)
    none = dataclasses.replace(COMING, slots=())
    with pytest.raises(errors.ClaimError) as caught:
        passage.check_arrival(none, host, told)
    assert "claimed no slot on this host" in caught.value.reason
