# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler chooses the right card, with a real Placement."""

import re
import uuid

import fixtures
import pytest
from nova import exception
from nova.scheduler import request_filter

from filters import candidate_capture
from nova_accel.model import names
from tests.functional.scheduler import scheduling
from tests.functional.scheduler.scheduling import (
    Cloud,
    Scheduler,
    flavor_specs,
)

scheduler = scheduling.scheduler
log = scheduling.log


def test_two_servers_of_three_units_get_a_card_each(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=3, b=3)

    first, second = scheduler.boot(flavor_specs(3), count=2)

    assert {
        **cloud.list_mdevs(first),
        **cloud.list_mdevs(second),
    } == dict.fromkeys(cards.values(), 3)
    assert "refuses" not in log.output


def test_stock_nova_fails_where_the_filter_succeeds(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    # Bug 1874664: once Nova fixes it, half of the filter is obsolete.
    cloud.add_host("labvm", a=3, b=3)
    scheduler.host_manager.enabled_filters.pop()

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(flavor_specs(3), count=2)


def test_a_refusal_names_each_card_and_its_reason(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    cloud.add_host("labvm", a=3, b=3)
    servers = [str(uuid.uuid4()) for _ in range(3)]

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(flavor_specs(3), instances=servers)

    (line,) = re.findall("AcceleratorFilter refuses.*", log.output)
    assert line.startswith("AcceleratorFilter refuses host labvm: ")
    reasons = sorted(line.partition("labvm: ")[2].split("; "))
    for card, reason in zip("ab", reasons, strict=True):
        text, _, taker = reason.partition(" (taken by server ")
        assert text == (
            f"labvm_accel_{card}: CUSTOM_MDEV 0 left of 3, 3 needed"
        )
        assert taker[:36] in servers[:2]
        assert taker[36:] == " of the same request)"
    assert [cloud.list_mdevs(server) for server in servers] == [{}, {}, {}]


def test_the_fullest_card_is_allocated_first(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=4, c=4)
    cloud.take(cards["b"], 2)
    cloud.take(cards["c"], 4)

    (first,) = scheduler.boot(flavor_specs())
    second, third = scheduler.boot(flavor_specs(), count=2)

    assert (
        cloud.list_mdevs(first) == cloud.list_mdevs(second) == {cards["b"]: 1}
    )
    assert cloud.list_mdevs(third) == {cards["a"]: 1}


def test_servers_of_one_request_use_the_next_host(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, first_host = cloud.add_host("host1", a=1)
    _, second_host = cloud.add_host("host2", a=1)

    servers = scheduler.boot(flavor_specs(), count=2)

    providers = [provider for s in servers for provider in cloud.list_mdevs(s)]
    assert sorted(providers) == sorted([first_host["a"], second_host["a"]])
    assert log.output.count("AcceleratorFilter refuses host") >= 1


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_read_beside_novas_own_queries(
    cloud: Cloud, scheduler: Scheduler, count: int
) -> None:
    for number in range(6):
        cloud.add_host(f"host{number}", a=2, b=2)
    cloud.read_paths.clear()

    scheduler.boot(flavor_specs(), count=count)

    # Nova's own, and its claims.
    assert [
        re.sub(r"\?.*|[0-9a-f-]{36}", "", path) for path in cloud.read_paths
    ] == ["/allocation_candidates"] + ["/allocations/"] * count


def test_servers_without_accelerators_cause_no_query(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cloud.add_host("labvm", a=2, b=2)

    def read_on_boot() -> list[str]:
        cloud.read_paths.clear()
        scheduler.boot({}, count=2)
        return [
            re.sub(r"(/allocations/).*", r"\1", u) for u in cloud.read_paths
        ]

    with_filter = read_on_boot()
    scheduler.host_manager.enabled_filters.pop()
    request_filter.ALL_REQUEST_FILTERS.clear()
    assert with_filter == read_on_boot()


def test_two_groups_may_share_a_card_or_use_two(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=2, b=2)
    specs = {
        "resources_A:CUSTOM_MDEV": "1",
        "resources_B:CUSTOM_MDEV": "1",
        "group_policy": "isolate",
    }

    first, second = scheduler.boot(specs, count=2)

    both = dict.fromkeys(cards.values(), 1)
    assert cloud.list_mdevs(first) == cloud.list_mdevs(second) == both


def test_without_a_capture_one_query_of_each_server_replaces_it(
    cloud: Cloud, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_capture, "find_summaries", lambda _: None)
    _, cards = cloud.add_host("labvm", a=4, b=4)

    servers = scheduler.boot(flavor_specs(4), count=2)

    providers = [provider for s in servers for provider in cloud.list_mdevs(s)]
    assert sorted(providers) == sorted(cards.values())
    own = [path for path in cloud.read_paths if names.OWNER_TRAIT in path]
    assert len(own) == 3  # The last one is for alternates.


def test_a_failed_read_refuses_no_host(
    cloud: Cloud,
    scheduler: Scheduler,
    log: fixtures.FakeLogger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidate_capture, "find_summaries", lambda _: None)
    _, cards = cloud.add_host("labvm", a=4)
    cloud.broken = names.OWNER_TRAIT

    servers = scheduler.boot(flavor_specs(2), count=2)

    assert [cloud.list_mdevs(s) for s in servers] == [{cards["a"]: 2}] * 2
    assert "Could not read provider data from Placement: GET" in log.output
    assert "ConnectFailure" in log.output
