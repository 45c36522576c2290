# SPDX-License-Identifier: Apache-2.0
"""A pass repairs lost devices and wrong commands of operators."""

import dataclasses
from collections.abc import Callable

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.client import calls, cloud_client, resource_providers
from placement_sync.sync import sync_pass
from tests.functional.sync.support import judge, lives, one_card, servers
from tests.support import strategies

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("3b", "41", "5e", "af"))
ROOT = strategies.ROOT
OTHER = providers.ProviderRoot(
    name="compute-2", uuid="1f2e3d4c-0000-4000-8000-000000000002"
)


def uuid_of(address: str) -> str:
    return names.provider_uuid(ROOT.uuid, address)


def host_of(*devices: model.Device) -> model.HostState:
    return model.HostState(devices=devices)


def qat(address: str, vfs: int) -> model.Device:
    """Return a crypto card with this number of VFs."""
    slots = tuple(f"{address[:-1]}{n}" for n in range(1, vfs + 1))
    return model.Device(
        address=address,
        plugin="qat",
        technology="pci_vf",
        vendor="Intel",
        model="QAT",
        resource_class=names.QAT_VF_CLASS,
        counters={names.QAT_VF_CLASS: vfs},
        slots=slots,
        traits=frozenset({"CUSTOM_QAT_SYM"}),
    )


class Site:
    """A compute node, an operator, and the library's pass."""

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        tables = judge.Tables(server.database)
        self.operator = lives.Client(server, tables)
        for root in (ROOT, OTHER):
            self.operator.create(root.uuid, root.name, None)
        self.client = cloud_client.from_endpoint(server.url)
        self.restart()

    def restart(self) -> None:
        """Replace the pass by that of a service that has just started."""
        self.synchronizer = sync_pass.Synchronizer(
            resource_providers.PlacementClient(self.client),
            sleep=lambda _: None,
        )

    def run(self, host: model.HostState) -> sync_pass.PassResult:
        desired = tree_builder.build_tree(ROOT, host, policy.DeviceRules())
        return self.synchronizer.run(desired, host)

    def run_other(self) -> None:
        """Run a pass of the other host, which has no device."""
        sync_pass.Synchronizer(
            resource_providers.PlacementClient(self.client),
            sleep=lambda _: None,
        ).run(providers.ProviderTree(root=OTHER), host_of())

    def row(self, address: str) -> judge.Row | None:
        return self.operator.tables.read(ROOT, OTHER).get(uuid_of(address))

    def existing_row(self, address: str) -> judge.Row:
        row = self.row(address)
        assert row is not None
        return row

    def record(self, address: str, name: str = "VGPU") -> tuple[int, int]:
        """Return total and reserved of a class."""
        record = self.existing_row(address).inventories[name]
        return record.total, record.reserved

    def reserve(self, address: str, amount: int) -> None:
        """Reserve an amount, as an operator's client does."""
        row = self.existing_row(address)
        records = {
            name: dataclasses.replace(record, reserved=amount)
            for name, record in row.inventories.items()
        }
        self.operator.put_inventories(row.uuid, records)


@pytest.fixture
def site(placement: servers.Server) -> Site:
    return Site(placement)


# -- a device that is gone ----------------------------------------------


def test_a_card_in_use_vanishes_and_returns(site: Site) -> None:
    cards = [strategies.card(address, 4, 4) for address in (A, B, C)]
    assert site.run(host_of(*cards)).is_ok
    site.reserve(B, 1)
    site.operator.allocate(uuid_of(B), {"VGPU": 1})
    changed, new = strategies.card(A, 4, 0), strategies.card(D, 4)

    lost = site.run(host_of(changed, cards[2], new))

    assert lost.is_ok
    assert site.record(B) == (4, 4)
    assert names.MISSING_TRAIT in site.existing_row(B).traits
    gone = strategies.profile_trait("P-2")
    assert gone not in site.existing_row(A).traits
    assert gone not in site.existing_row(B).traits
    assert site.record(D) == (4, 0)
    assert site.run(host_of(changed, cards[2], new)).writes == 0

    assert site.run(host_of(changed, *cards[1:], new)).is_ok
    assert site.record(B) == (4, 1)
    assert names.MISSING_TRAIT not in site.existing_row(B).traits
    assert gone in site.existing_row(B).traits
    assert site.existing_row(B).allocations


def test_a_missing_device_without_servers_is_deleted(site: Site) -> None:
    card = strategies.card(A, 4)
    site.run(host_of(card))
    server = site.operator.allocate(uuid_of(A), {"VGPU": 1})
    assert site.run(host_of()).is_ok
    assert site.row(A) is not None
    site.operator.call("DELETE", f"/allocations/{server}")
    site.restart()
    assert [type(c) for c in site.run(host_of()).calls] == [
        calls.DeleteProvider
    ]
    assert site.row(A) is None


def test_allocations_are_rechecked_after_an_interval(site: Site) -> None:
    now = 1000.0
    synchronizer = sync_pass.Synchronizer(
        resource_providers.PlacementClient(site.client), clock=lambda: now
    )
    site.synchronizer = synchronizer
    site.run(host_of(strategies.card(A, 4)))
    server = site.operator.allocate(uuid_of(A), {"VGPU": 1})
    site.run(host_of())
    site.operator.call("DELETE", f"/allocations/{server}")
    unchanged = site.run(host_of())
    assert (unchanged.reads, unchanged.writes) == (1, 0)
    now += sync_pass.RECHECK_SECONDS
    site.run(host_of())
    assert site.row(A) is None


def test_vfs_are_removed_while_others_are_in_use(site: Site) -> None:
    """The total falls below the allocations; Placement offers no VF then."""
    site.run(host_of(qat(A, 4), strategies.card(B, 4)))
    for _ in range(3):
        site.operator.allocate(uuid_of(A), {names.QAT_VF_CLASS: 1})

    fewer = site.run(host_of(qat(A, 2), strategies.card(B, 4, 4)))
    assert fewer.is_ok
    assert site.record(A, names.QAT_VF_CLASS) == (2, 0)
    assert len(site.existing_row(A).allocations) == 3
    assert strategies.profile_trait("P-2") in site.existing_row(B).traits

    none = site.run(host_of(qat(A, 0), strategies.card(B, 4)))
    assert none.is_ok
    assert site.record(A, names.QAT_VF_CLASS) == (2, 2)
    assert strategies.profile_trait("P-2") not in site.existing_row(B).traits

    assert site.run(host_of(qat(A, 4), strategies.card(B, 4))).is_ok
    assert site.record(A, names.QAT_VF_CLASS) == (4, 0)


def test_unreadable_is_not_absent(site: Site) -> None:
    """Its provider remains, in use or not, and gets no new server."""
    cards = [strategies.card(address, 4) for address in (A, B)]
    site.run(host_of(*cards))
    host = model.HostState(devices=(cards[1],), unknown=frozenset({A}))
    assert site.run(host).is_ok
    assert site.record(A) == (4, 4)
    assert names.FAULTED_TRAIT in site.existing_row(A).traits
    assert site.run(host_of(*cards)).is_ok
    assert site.record(A) == (4, 0)
    assert names.FAULTED_TRAIT not in site.existing_row(A).traits


def test_an_unreadable_technology_deletes_nothing(
    site: Site,
) -> None:
    site.run(host_of(strategies.card(A, 4)))
    before = site.existing_row(A)
    result = site.run(model.HostState(complete=False))
    assert (result.is_ok, result.writes) == (True, 0)
    assert site.existing_row(A) == before


# -- wrong commands -------------------------------------------------------

Command = Callable[[Site], None]


def _set(site: Site, name: str, parent: str | None) -> None:
    body = {"name": name, "parent_provider_uuid": parent}
    site.operator.call("PUT", f"{lives.PATH}/{uuid_of(A)}", body)


def rename(site: Site) -> None:
    _set(site, "my-card", ROOT.uuid)


def unparent(site: Site) -> None:
    _set(site, site.existing_row(A).name, None)


def move_to_another_host(site: Site) -> None:
    _set(site, site.existing_row(A).name, OTHER.uuid)


def rename_and_move(site: Site) -> None:
    _set(site, "my-card", OTHER.uuid)


MOVES = (rename, unparent, move_to_another_host, rename_and_move)


def _plain(row: judge.Row) -> judge.Row:
    return dataclasses.replace(row, generation=0)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("command", MOVES)
def test_a_moved_provider_is_reported_until_it_is_back(
    site: Site, command: Command, is_restarted: bool
) -> None:
    """It keeps its allocations, and no host deletes or duplicates it."""
    host = host_of(*(strategies.card(address, 4) for address in (A, B)))
    site.run(host)
    site.operator.allocate(uuid_of(A), {"VGPU": 2})
    before = site.existing_row(A)
    command(site)
    moved = site.row(A)
    if is_restarted:
        site.restart()
    [problem] = site.run(host).problems
    assert problem.where == before.name
    assert (
        f"provider set --name {before.name} --parent-provider {ROOT.uuid}"
        f" {before.uuid}'" in problem.reason
    )
    site.run_other()
    # The other host can't know a name that an operator has set.
    assert site.row(A) == moved or command is rename_and_move
    assert site.record(B) == (4, 0)
    _set(site, before.name, ROOT.uuid)
    assert site.run(host).is_ok
    assert _plain(site.existing_row(A)) == _plain(before)
    assert site.run(host).writes == 0


def test_a_name_of_another_card_is_reported(site: Site) -> None:
    host = host_of(*(strategies.card(address, 4) for address in (A, B)))
    site.run(host)
    before = site.existing_row(A)
    site.operator.call("DELETE", f"{lives.PATH}/{before.uuid}")
    body = {"name": before.name, "parent_provider_uuid": ROOT.uuid}
    site.operator.call("PUT", f"{lives.PATH}/{uuid_of(B)}", body)
    missing, renamed = site.run(host).problems
    assert missing.where == before.name
    own_name = names.provider_name(ROOT.name, B)
    assert f"provider set --name {own_name} " in renamed.reason
    body["name"] = own_name
    site.operator.call("PUT", f"{lives.PATH}/{uuid_of(B)}", body)
    assert site.run(host).is_ok
    assert _plain(site.existing_row(A)) == _plain(before)


def test_an_operators_settings_are_retained(site: Site) -> None:
    host = host_of(strategies.card(A, 4))
    site.run(host)
    row = site.existing_row(A)
    site.operator.put_traits(row.uuid, {*row.traits, "CUSTOM_RACK_7"})
    record = dataclasses.replace(
        row.inventories["VGPU"], reserved=2, allocation_ratio=1.5
    )
    site.operator.put_inventories(row.uuid, {"VGPU": record})
    assert site.run(host).writes == 0
    changed = site.run(host_of(strategies.card(A, 4, 4)))
    assert (
        changed.writes <= 2
    )  # Create a new trait, and set the provider's traits.
    assert site.existing_row(A).inventories["VGPU"] == record
    assert "CUSTOM_RACK_7" in site.existing_row(A).traits


# -- conflicting providers ------------------------------------------------


def test_the_providers_of_a_dead_host_are_no_obstacle(site: Site) -> None:
    """They are not deleted: their host may only be stopped."""
    dead = names.provider_uuid(OTHER.uuid, A)
    site.operator.create(dead, names.provider_name(OTHER.name, A), OTHER.uuid)
    site.operator.put_traits(dead, {*strategies.OWNED})
    before = site.operator.tables.read(OTHER)
    assert site.run(host_of(strategies.card(A, 4))).is_ok
    assert site.operator.tables.read(OTHER) == before


def test_a_used_name_is_a_problem_of_its_card_only(
    site: Site,
) -> None:
    """The cards' names belong to the host's former registration."""
    old = names.provider_uuid(OTHER.uuid, A)
    name = names.provider_name(ROOT.name, A)
    site.operator.create(old, name, OTHER.uuid)
    cards = [strategies.card(address, 4) for address in (A, B)]
    result = site.run(host_of(*cards))
    [problem] = result.problems
    assert problem.where == name
    assert f"openstack resource provider delete {old}" in problem.reason
    assert site.record(B) == (4, 0)
    site.operator.call("DELETE", f"{lives.PATH}/{old}")
    site.restart()
    assert site.run(host_of(*cards)).is_ok
    assert site.record(A) == (4, 0)


def test_names_of_a_former_registration_are_backed_off(site: Site) -> None:
    """One problem for all cards, and no request for them until later."""
    clock = one_card.Clock()
    site.synchronizer = sync_pass.Synchronizer(
        resource_providers.PlacementClient(site.client, clock),
        lambda _: None,
        clock=clock,
    )
    old = [names.provider_uuid(OTHER.uuid, each) for each in (A, B)]
    for own, address in zip(old, (A, B), strict=True):
        name = names.provider_name(ROOT.name, address)
        site.operator.create(own, name, OTHER.uuid)
    host = host_of(*(strategies.card(address, 4) for address in (A, B)))

    def count_conflicts() -> int:
        requests = site.server.clear()
        return sum(r.method == "POST" and r.status == 409 for r in requests)

    site.server.clear()
    [problem] = site.run(host).problems
    assert count_conflicts() == 2
    assert all(f"provider delete {own}" in problem.reason for own in old)
    assert site.run(host).problems == (problem,)
    assert [r.method for r in site.server.clear()] == ["GET"]
    clock.now += sync_pass.RECHECK_SECONDS
    assert site.run(host).problems == (problem,)
    assert count_conflicts() == 2
    for own in old:
        site.operator.call("DELETE", f"{lives.PATH}/{own}")
    clock.now += sync_pass.RECHECK_SECONDS
    assert site.run(host).is_ok


def test_a_foreign_child_prevents_a_delete(
    site: Site,
) -> None:
    site.run(host_of(strategies.card(A, 4)))
    child = names.provider_uuid(OTHER.uuid, "stranger")
    site.operator.create(child, "stranger", uuid_of(A))
    [problem] = site.run(host_of()).problems
    assert "child providers" in problem.reason
    assert site.record(A) == (4, 4)
    assert names.MISSING_TRAIT in site.existing_row(A).traits
    site.operator.call("DELETE", f"{lives.PATH}/{child}")
    assert site.run(host_of()).is_ok
    assert site.row(A) is None
