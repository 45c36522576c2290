# SPDX-License-Identifier: Apache-2.0
"""Which card a server gets, by Nova's scheduler and a real Placement."""

import re
import uuid

import fixtures
import pytest
from nova import exception
from nova.scheduler import request_filter

from filters import accelerator_filter, facts, fit
from nova_accel import names
from tests.functional import scheduling
from tests.functional.scheduling import Cloud, Scheduler, flavor_specs

cloud = scheduling.cloud
scheduler = scheduling.scheduler
log = scheduling.log


def test_two_servers_of_three_units_get_a_card_each(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=3, b=3)

    first, second = scheduler.boot(flavor_specs(3), count=2)

    assert {**cloud.held(first), **cloud.held(second)} == dict.fromkeys(
        cards.values(), 3
    )
    assert "refuses" not in log.output


def test_stock_nova_fails_where_the_filter_succeeds(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    # Bug 1874664: should this pass one day, the filter's half is moot.
    cloud.add_host("labvm", a=3, b=3)
    scheduler.host_manager.enabled_filters.pop()

    with pytest.raises(exception.NoValidHost):
        scheduler.boot(flavor_specs(3), count=2)


def test_a_third_server_is_refused_with_each_card_and_why(
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
    assert [cloud.held(server) for server in servers] == [{}, {}, {}]


def test_the_fullest_card_is_taken_and_the_whole_one_left(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=4, c=4)
    cloud.take(cards["b"], 2)
    cloud.take(cards["c"], 4)

    (first,) = scheduler.boot(flavor_specs())
    second, third = scheduler.boot(flavor_specs(), count=2)

    assert cloud.held(first) == cloud.held(second) == {cards["b"]: 1}
    assert cloud.held(third) == {cards["a"]: 1}


def test_siblings_go_on_to_the_next_host(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, one = cloud.add_host("host1", a=1)
    _, two = cloud.add_host("host2", a=1)

    servers = scheduler.boot(flavor_specs(), count=2)

    held = [provider for s in servers for provider in cloud.held(s)]
    assert sorted(held) == sorted([one["a"], two["a"]])
    assert log.output.count("AcceleratorFilter refuses host") >= 1


def test_calls_do_not_grow_with_hosts(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    for number in range(6):
        cloud.add_host(f"host{number}", a=2, b=2)

    scheduler.boot(flavor_specs())

    # One beforehand, Nova's own, one bulk read for the order of cards;
    # and Nova's claim reads what the server holds.
    assert [u.partition("?")[0] for u in cloud.asked[:3]] == [
        "/allocation_candidates"
    ] * 3
    assert [u.split("/")[1] for u in cloud.asked[3:]] == ["allocations"]


def test_servers_without_accelerators_ask_nothing_of_ours(
    cloud: Cloud, scheduler: Scheduler
) -> None:
    cloud.add_host("labvm", a=2, b=2)

    def asked() -> list[str]:
        cloud.asked.clear()
        scheduler.boot({}, count=2)
        return [re.sub(r"(/allocations/).*", r"\1", u) for u in cloud.asked]

    with_filter = asked()
    scheduler.host_manager.enabled_filters.pop()
    request_filter.ALL_REQUEST_FILTERS.clear()
    assert with_filter == asked()


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
    assert cloud.held(first) == cloud.held(second) == both


@pytest.mark.parametrize("path", ["/inventories", "/usages"])
def test_a_failed_read_refuses_nobody(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger, path: str
) -> None:
    _, cards = cloud.add_host("labvm", a=4)
    cloud.broken = path

    servers = scheduler.boot(flavor_specs(2), count=2)

    assert [cloud.held(s) for s in servers] == [{cards["a"]: 2}] * 2
    assert "AcceleratorFilter knows less: GET /resource_pro" in log.output
    assert "ConnectFailure" in log.output


def test_without_the_bulk_read_the_order_is_placement_s(
    cloud: Cloud, scheduler: Scheduler, log: fixtures.FakeLogger
) -> None:
    _, cards = cloud.add_host("labvm", a=4, b=4)
    cloud.broken = names.OWNER_TRAIT

    servers = scheduler.boot(flavor_specs(4), count=2)

    held = [provider for s in servers for provider in cloud.held(s)]
    assert sorted(held) == sorted(cards.values())
    assert "AcceleratorFilter knows less" in log.output


def test_a_provider_that_changes_while_it_is_read_is_not_exact(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cards = cloud.add_host("labvm", a=1)
    cloud.take(cards["a"], 1)
    ask_placement = accelerator_filter.placement_getter()
    ask = cloud.client.get

    def get(url: str, **kwargs: object) -> object:
        answer = ask(url, **kwargs)
        if url.endswith("/inventories"):
            cloud.set_traits(cards["a"], names.OWNER_TRAIT)
        return answer

    before = facts.fetch_stock(ask_placement, cards["a"])
    monkeypatch.setattr(cloud.client, "get", get)
    after = facts.fetch_stock(ask_placement, cards["a"])

    stock = {names.MDEV_CLASS: fit.Stock(capacity=1, used=1)}
    assert before == (stock, True)
    assert after == (stock, False)
