# SPDX-License-Identifier: Apache-2.0
"""One pass turns any tree into any other; a second pass changes nothing.

``NOVA_ACCEL_SYNC_TREES`` is the number of random trees, 1,000 for all that
is promised; on MariaDB it is a quarter of that.
"""

import os
import time

import pytest

from placement_sync.client import calls, resource_providers, rest
from placement_sync.sync import sync_pass
from tests.functional.sync.support import judge, lives, servers, trees
from tests.support.examples import examples

TREES = int(os.environ.get("NOVA_ACCEL_SYNC_TREES", "") or examples(100))
SEED = os.environ.get("NOVA_ACCEL_SYNC_SEED", "a")


def converge(
    server: servers.Server,
    tables: judge.Tables,
    door: rest.RestClient,
    seed: str,
) -> sync_pass.PassResult:
    """Draw two trees, go from one to the other, and judge."""
    life = lives.Life(server, tables, seed)
    life.build()
    life.wish = trees.draw_wish(life.dice, life.root)
    done = life.damage()
    case = life.case()
    one = sync_pass.Synchronizer(
        resource_providers.PlacementClient(door), sleep=lambda _: None
    )
    wish = life.wish
    result = one.run(wish.tree, wish.host)
    after = life.rows()
    assert result.problems == (), (seed, done)
    assert case.faults(after) == [], (seed, done, *map(str, result.calls))
    server.clear()
    again = one.run(wish.tree, wish.host)
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
    door = rest.from_endpoint(any_placement.url)
    began = time.monotonic()
    results = [
        converge(any_placement, tables, door, f"{SEED}{number}")
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


def test_who_has_just_started_writes_nothing_either(
    placement: servers.Server,
) -> None:
    tables = judge.Tables(placement.database)
    for number in range(10):
        life = lives.Life(placement, tables, f"start{number}")
        life.build()
        life.wish = trees.draw_wish(life.dice, life.root)
        door = rest.from_endpoint(placement.url)
        for expected in (False, True):
            one = sync_pass.Synchronizer(
                resource_providers.PlacementClient(door)
            )
            result = one.run(life.wish.tree, life.wish.host)
            if expected:
                assert (result.calls, result.writes) == ((), 0)


def test_a_dry_run_tells_what_would_be_done_and_does_not_do_it(
    placement: servers.Server,
) -> None:
    tables = judge.Tables(placement.database)
    door = rest.from_endpoint(placement.url)
    for number in range(10):
        life = lives.Life(placement, tables, f"dry{number}")
        life.build()
        life.wish = trees.draw_wish(life.dice, life.root)
        before = life.rows()
        one = sync_pass.Synchronizer(resource_providers.PlacementClient(door))
        dry = one.run(life.wish.tree, life.wish.host, is_dry=True)
        assert dry.writes == 0
        assert dry.calls
        assert life.rows() == before
        assert one.run(life.wish.tree, life.wish.host).calls == dry.calls
