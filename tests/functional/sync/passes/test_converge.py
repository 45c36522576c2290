# SPDX-License-Identifier: Apache-2.0
"""One pass turns any tree into any other; a second pass changes nothing.

``NOVA_ACCEL_SYNC_TREES`` is the number of random trees, 1,000 in a full run;
on MariaDB it is a quarter of that.
"""

import os
import time

import pytest

from placement_sync.client import calls, cloud_client, resource_providers, rest
from placement_sync.sync import sync_pass
from tests.functional.sync.support import judge, lives, servers, trees
from tests.support.examples import examples

TREES = int(os.environ.get("NOVA_ACCEL_SYNC_TREES", "") or examples(100))
SEED = os.environ.get("NOVA_ACCEL_SYNC_SEED", "a")


def converge(
    server: servers.Server,
    tables: judge.Tables,
    client: rest.RestClient,
    seed: str,
) -> sync_pass.PassResult:
    """Draw two trees, run a pass from one to the other, and check it."""
    life = lives.Life(server, tables, seed)
    life.build()
    life.desired = trees.draw_desired(life.dice, life.root)
    changes = life.damage()
    case = life.case()
    synchronizer = sync_pass.Synchronizer(
        resource_providers.PlacementClient(client), sleep=lambda _: None
    )
    desired = life.desired
    result = synchronizer.run(desired.tree, desired.host)
    after = life.rows()
    assert result.problems == (), (seed, changes)
    assert case.faults(after) == [], (seed, changes, *map(str, result.calls))
    server.clear()
    again = synchronizer.run(desired.tree, desired.host)
    assert again.calls == (), (seed, *map(str, again.calls))
    assert again.writes == 0, seed
    assert again.reads <= 1, (seed, server.requests())
    assert life.rows() == after, seed
    return result


def test_one_pass_from_any_tree_to_any_other(
    any_placement: servers.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    is_mariadb = not any_placement.database.startswith("sqlite")
    count = max(1, TREES // 4) if is_mariadb else TREES
    tables = judge.Tables(any_placement.database)
    client = cloud_client.from_endpoint(any_placement.url)
    began = time.monotonic()
    results = [
        converge(any_placement, tables, client, f"{SEED}{number}")
        for number in range(count)
    ]
    kinds = {type(call) for result in results for call in result.calls}
    with capsys.disabled():
        print(
            f"\n{count} trees on"
            f" {'MariaDB' if is_mariadb else 'sqlite'}: all converged in one"
            f" pass; {sum(r.writes for r in results)} writes,"
            f" {sum(r.reads for r in results)} reads, at most"
            f" {max(r.attempts for r in results)} attempts,"
            f" {time.monotonic() - began:.0f} s"
        )
    if count >= 100:
        assert kinds >= {*calls.ProviderCall.__args__}


def test_a_restarted_service_writes_nothing(
    placement: servers.Server,
) -> None:
    tables = judge.Tables(placement.database)
    for number in range(examples(10)):
        life = lives.Life(placement, tables, f"start{number}")
        life.build()
        life.desired = trees.draw_desired(life.dice, life.root)
        client = cloud_client.from_endpoint(placement.url)
        for expected in (False, True):
            synchronizer = sync_pass.Synchronizer(
                resource_providers.PlacementClient(client)
            )
            result = synchronizer.run(life.desired.tree, life.desired.host)
            if expected:
                assert (result.calls, result.writes) == ((), 0)


def test_a_dry_run_returns_calls_and_writes_nothing(
    placement: servers.Server,
) -> None:
    tables = judge.Tables(placement.database)
    client = cloud_client.from_endpoint(placement.url)
    for number in range(examples(10)):
        life = lives.Life(placement, tables, f"dry{number}")
        life.build()
        life.desired = trees.draw_desired(life.dice, life.root)
        before = life.rows()
        synchronizer = sync_pass.Synchronizer(
            resource_providers.PlacementClient(client)
        )
        dry = synchronizer.run(
            life.desired.tree, life.desired.host, is_dry=True
        )
        assert dry.writes == 0
        assert dry.calls
        assert life.rows() == before
        assert (
            synchronizer.run(life.desired.tree, life.desired.host).calls
            == dry.calls
        )
