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
    """Draw two trees, and run a pass from one to the other.

    The second time the pass knows what it has written, and an operator has
    changed that.
    """
    life = lives.Life(server, tables, seed)
    life.build()
    life.desired = trees.draw_desired(life.dice, life.root)
    synchronizer = start(client)
    result = repair(life, synchronizer, client, server)
    life.forget_deleted()
    repair(life, synchronizer, client, server)
    return result


def repair(
    life: lives.Life,
    synchronizer: sync_pass.Synchronizer,
    client: rest.RestClient,
    server: servers.Server,
) -> sync_pass.PassResult:
    """Damage a tree, run a pass, and check it.

    A dry run before it has the same calls. Neither the pass nor a service
    that was restarted has anything left to write afterwards.
    """
    where = life.root.name, *life.damage()
    case, desired = life.case(), life.desired
    dry = start(client).run(desired.tree, desired.host, is_dry=True)
    assert dry.writes == 0, where
    assert life.rows() == case.before, where
    result = synchronizer.run(desired.tree, desired.host)
    after = life.rows()
    assert result.problems == (), where
    assert result.calls == dry.calls, where
    assert case.faults(after) == [], (where, *map(str, result.calls))
    server.clear()
    again = synchronizer.run(desired.tree, desired.host)
    assert again.reads <= 1, (where, server.requests())
    restarted = start(client).run(desired.tree, desired.host)
    for later in (again, restarted):
        assert later.calls == (), (where, *map(str, later.calls))
        assert later.writes == 0, where
    assert life.rows() == after, where
    return result


def start(client: rest.RestClient) -> sync_pass.Synchronizer:
    """Return the pass of a service that has just started."""
    return sync_pass.Synchronizer(
        resource_providers.PlacementClient(client), sleep=lambda _: None
    )


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
