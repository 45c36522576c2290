# SPDX-License-Identifier: Apache-2.0
"""Stock of flavors, with a real Placement, Keystone's middleware and files."""

import datetime
import json
import pathlib
import random
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nova import rpc
from oslo_messaging.notify import _impl_test

from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.model import names
from placement_sync.client import cloud_client, rest
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import cloud as clouds
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.stock import (
    stock_file,
    stock_levels,
    stock_reader,
    wsgi,
)
from tests.functional.sync.commands import programs
from tests.functional.sync.fleet import stock_site
from tests.functional.sync.support import identity, nova_standin, servers
from tests.support import examples

Site = stock_site.Site
MANY, FEW, NONE = "many", "few", "none"
_TWO = {
    **stock_site.ONE,
    **{
        key.replace("_A:", "_B:"): value
        for key, value in stock_site.ONE.items()
    },
    "group_policy": "isolate",
}
_FULL = {
    "resources_A:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "16384",
    f"trait_A:{stock_site.T4_16Q}": "required",
}


@pytest.fixture
def site(placement: servers.Server, tmp_path: pathlib.Path) -> Iterator[Site]:
    with nova_standin.serve() as nova:
        site = Site(placement, nova, tmp_path)
        nova.add_flavor("one", **stock_site.ONE)
        yield site


def test_levels_follow_the_cards(site: Site) -> None:
    site.nova.add_flavor("plain")
    cards = site.add_host("one", "12")
    assert site.list_levels() == {"one": FEW}
    site.add_host("two", "1")
    assert site.list_levels() == {"one": MANY}
    for card in cards:
        site.cloud.allocate_mb(card, 4096, 4096, 4096, 4096)
    assert site.list_levels() == {"one": FEW}


def test_a_flavor_with_choices_has_the_stock_of_any(site: Site) -> None:
    (card,) = site.add_host("one", "1")
    choices = {"accelerator:profiles": "T4-16Q,T4-4Q"}
    site.nova.add_flavor("either", **_FULL, **choices)
    site.nova.add_flavor("wrong", **_FULL, **{"accelerator:profiles": "T4"})
    site.cloud.allocate_mb(card, 4096)
    assert site.list_levels() == {"either": FEW, "one": FEW, "wrong": NONE}
    site.cloud.allocate_mb(card, 4096, 4096, 4096)
    assert site.list_levels()["either"] == NONE


def test_cpus_memory_and_disk_count(site: Site) -> None:
    site.add_host("one", "1234", VCPU=3)
    assert site.list_levels() == {"one": NONE}
    site.add_host("two", "1234", VCPU=8)
    assert site.list_levels() == {"one": FEW}


def test_a_host_that_is_down_has_no_stock(site: Site) -> None:
    site.add_host("one", "1234")
    site.nova.down["one"] = None
    assert site.list_levels() == {"one": NONE}


def test_other_filters_are_not_promised(site: Site) -> None:
    site.add_host("one", "1234")
    site.nova.add_flavor(
        "pinned", **stock_site.ONE, **{"hw:cpu_policy": "dedicated"}
    )
    site.nova.add_flavor(
        "near", **stock_site.ONE, **{"accelerator:numa_policy": "required"}
    )
    site.nova.add_flavor("tagged", **stock_site.ONE, ssd="true")
    assert site.list_levels() == {
        **{"one": MANY, "pinned": FEW},
        **{"near": FEW, "tagged": FEW},
    }


def test_a_flavor_that_placement_rejects_has_no_stock(site: Site) -> None:
    site.add_host("one", "1234")
    malformed = {key: v for key, v in _TWO.items() if key != "group_policy"}
    site.nova.add_flavor("two", **malformed)
    assert site.list_levels()["two"] == NONE


def test_a_level_has_the_time_of_its_beginning(site: Site) -> None:
    (card,) = site.add_host("one", "1")
    site.list_levels()
    first = site.read()["one"].since
    path = pathlib.Path(site.path)
    old = path.read_text().replace(first, "2026-01-01T00:00:00+00:00")
    path.write_text(old)
    site.list_levels()
    assert site.read()["one"].since == "2026-01-01T00:00:00+00:00"
    site.cloud.allocate_mb(card, 4096, 4096, 4096, 4096)
    site.list_levels()
    assert site.read()["one"].since > first[:-6]


def test_the_page_has_no_private_flavor_and_no_number(site: Site) -> None:
    site.nova.access["secret"] = ["films"]
    site.nova.add_flavor("secret", **stock_site.ONE)
    site.add_host("one", "1")
    assert site.publish("--number-role", "reader") == 0
    page = (site.place / "stock.html").read_text()
    assert '<td>one</td><td class="few">few</td>' in page
    assert "secret" not in page
    mode = pathlib.Path(site.path).stat().st_mode
    assert not mode & 0o007


def test_a_service_that_fails_once_does_not_end_the_publisher(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.add_host("one", "1")
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        site.nova.broken = ("/flavors",) if len(waits) == 1 else ()
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", wait)
    # cliff ends the command then.
    assert site.publish("--interval", "60")
    assert waits == [60, 60, 60]
    assert "the stock is not published" in capsys.readouterr().err


def test_a_notification_says_that_a_flavor_is_back(site: Site) -> None:
    conf = site.place / "bus.conf"
    conf.write_text(
        "[DEFAULT]\ntransport_url = fake:/\n"
        "[oslo_messaging_notifications]\ndriver = test\n"
    )
    assert site.publish() == 0
    words = ("--notify", "--config-file", str(conf))
    _impl_test.reset()
    try:
        site.publish(*words)
        site.add_host("one", "1")
        rpc.cleanup()
        site.publish(*words)
        rpc.cleanup()
        site.publish(*words)
    finally:
        rpc.cleanup()
    bodies = [message for _, message, *_ in _impl_test.NOTIFICATIONS]
    assert [body["event_type"] for body in bodies] == [
        "accelerator.stock.available"
    ]
    assert bodies[0]["payload"] == {
        "flavor_id": "one",
        "flavor": "one",
        "is_public": True,
        "tenant_id": None,
        "level": FEW,
        "since": site.read()["one"].since,
    }


# -- the service ------------------------------------------------------------


@pytest.fixture
def keystone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[identity.Identity]:
    with stock_site.serving(site, monkeypatch) as keystone:
        yield keystone


def list_rows(
    capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[dict[str, Any]]]:
    capsys.readouterr()
    status = programs.main(
        ["stock", "list", "--os-cloud", "north", "-f", "json", *words]
    )
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return status, rows


def test_a_user_sees_levels_of_the_own_flavors_only(
    site: Site,
    keystone: identity.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.nova.access["secret"] = ["films"]
    site.nova.add_flavor("secret", **stock_site.ONE)
    site.add_host("one", "1")
    site.publish("--number-role", "Counter")
    status, rows = list_rows(capsys)
    assert (status, [row["Flavor"] for row in rows]) == (0, ["one"])
    assert rows[0].keys() == {"Flavor", "Stock", "Since"}
    keystone.project, keystone.roles = "films", ["member", "counter"]
    _, rows = list_rows(capsys)
    assert [(r["Flavor"], r["At most"]) for r in rows] == [
        ("one", 4),
        ("secret", 4),
    ]


def test_hosts_of_a_project_are_stock_of_that_project(
    site: Site,
    keystone: identity.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.add_host("one", "1")
    site.nova.aggregates = [
        {
            "name": "own",
            "hosts": ["one"],
            "metadata": {"filter_tenant_id": "films, music"},
        }
    ]
    site.publish()
    assert list_rows(capsys)[0] == 1
    keystone.project = "music"
    status, (row,) = list_rows(capsys)
    assert (status, row["Stock"]) == (0, FEW)


def test_an_old_stock_is_unknown(
    site: Site,
    keystone: identity.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.add_host("one", "1234")
    site.publish()
    stock = stock_file.read(site.path)
    assert stock is not None
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=181)
    text = pathlib.Path(site.path).read_text()
    pathlib.Path(site.path).write_text(
        text.replace(
            f'"as_of": "{stock.as_of}"', f'"as_of": "{old.isoformat()}"'
        )
    )
    status, (row,) = list_rows(capsys)
    assert (status, row["Stock"], row["Since"]) == (1, "unknown", None)


def test_a_command_waits_for_stock(
    site: Site,
    keystone: identity.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site.publish()
    timer = threading.Timer(
        0.5, lambda: (site.add_host("one", "1"), site.publish())
    )
    timer.start()
    status = programs.main(
        [
            *("stock", "list", "--os-cloud", "north"),
            *("--flavor", "one", "--wait", "30"),
        ]
    )
    timer.join()
    assert status == 0
    assert "| one    | few   |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/v1/stock", "unknown", 401),
        ("GET", "/v1/stocks", "", 404),
        ("POST", "/v1/stock", "", 405),
        ("GET", "/v1/stock", "", 503),
    ],
)
def test_other_requests_are_refused(
    keystone: identity.Identity,
    method: str,
    path: str,
    token: str,
    status: int,
) -> None:
    compute = cloud_client.from_cloud("north", service=rest.COMPUTE)
    own = cloud_client.read_identity(compute)
    assert own is not None
    answer = requests.request(
        method,
        keystone.services[stock_file.SERVICE.name] + path,
        headers={
            "X-Auth-Token": token or own.token,
            "X-Identity-Status": "Confirmed",
            "X-Project-Id": "films",
        },
        timeout=30,
    )
    assert answer.status_code == status


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"format": 2}', '{"format": 1, "as_of": 1}'),
        '{"format": 1, "as_of": "2026-01-01", "max_age_s": 1, "starts": 1}',
        '{"format": 1, "as_of": "2026-01-01T00:00:00Z", "max_age_s": 1e300,'
        ' "starts": 1}',
    ],
)
def test_a_damaged_file_is_no_stock(
    site: Site, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    pathlib.Path(site.path).write_text(text)
    assert site.publish() == 2
    assert "can't be used as a stock" in capsys.readouterr().err


def test_a_service_without_a_file_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOVA_ACCEL_STOCK_FILE", raising=False)
    with pytest.raises(errors.ConfigurationError) as caught:
        wsgi.build_application([])
    assert "set the path of the file" in str(caught.value)


def test_a_damaged_file_is_logged_and_not_served(
    site: Site,
    keystone: identity.Identity,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pathlib.Path(site.path).write_text("{}")
    assert programs.main(["stock", "list", "--os-cloud", "north"]) == 1
    assert "no stock is published" in capsys.readouterr().err
    assert "can't be used as a stock" in caplog.text


# -- the promise ------------------------------------------------------------


_FLAVORS = {
    "one": clouds.Flavor(
        id="one",
        name="one",
        specs=stock_site.ONE,
        needs={"VCPU": 4, "MEMORY_MB": 2048},
        disk_gb=20,
    ),
    "two": clouds.Flavor(
        id="two",
        name="two",
        specs=_TWO,
        needs={"VCPU": 8, "MEMORY_MB": 4096},
    ),
    "full": clouds.Flavor(
        id="full", name="full", specs=_FULL, needs={"VCPU": 1, "MEMORY_MB": 1}
    ),
    "plain": clouds.Flavor(
        id="plain",
        name="plain",
        specs={},
        needs={"VCPU": 12, "MEMORY_MB": 32768},
    ),
}


class World:
    """Cloud of the promise, with an independent rule of its cards.

    All partitions of a T4 have one size.
    """

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._chooser = random.Random(seed)  # noqa: S311
        self._sizes: dict[str, set[int]] = {}

    def list_fitting(self, flavor: clouds.Flavor) -> list[Mapping[str, Any]]:
        """Return Placement's candidates that a host could build."""
        client = cloud_client.from_endpoint(self._site.placement.url)
        simulated = simulation.SimulatedRequest(
            specs=flavor.specs, needs=flavor.needs_with_disk
        )
        candidates, _ = simulation.fetch_candidates(client.fetch, simulated)
        return [
            candidate["allocations"]
            for candidate in candidates
            if all(
                self._sizes.get(card, {size}) == {size}
                for card, size in _list_sizes(candidate["allocations"])
            )
        ]

    def start(self, flavor: clouds.Flavor) -> None:
        """Start a server on any candidate, if there is one."""
        if not (fitting := self.list_fitting(flavor)):
            return
        allocations = self._chooser.choice(fitting)
        for card, size in _list_sizes(allocations):
            self._sizes.setdefault(card, set()).add(size)
        self._site.placement.call(
            "PUT",
            f"/allocations/{uuid.uuid4()}",
            {
                "allocations": allocations,
                "consumer_generation": None,
                "project_id": "p",
                "user_id": "u",
                "consumer_type": "INSTANCE",
            },
        )


def _list_sizes(allocations: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [
        (uuid, size)
        for uuid, each in allocations.items()
        if (size := each["resources"].get(names.GPU_MEMORY_CLASS))
    ]


hosts = st.tuples(st.integers(1, 3), st.sampled_from([4, 16, 64]))
starts = st.sampled_from(sorted(_FLAVORS))


@given(
    built=st.lists(hosts, min_size=1, max_size=4),
    before=st.lists(starts, max_size=6),
    during=st.lists(starts, min_size=1, max_size=4),
    seed=st.integers(0, 1 << 16),
)
@settings(
    deadline=None,
    max_examples=examples.examples(80),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_many_is_never_refused_after_the_promised_starts(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    built: list[tuple[int, int]],
    before: list[str],
    during: list[str],
    seed: int,
) -> None:
    """Whichever servers start, and on whichever candidates.

    A level of none and a level of few are those of the same moment.
    """
    placement.empty()
    with nova_standin.serve() as nova:
        site = Site(placement, nova, tmp_path)
        for name, flavor in _FLAVORS.items():
            nova.add_flavor(name, **flavor.specs)
            nova.flavors[name] |= {
                "vcpus": flavor.needs["VCPU"],
                "ram": flavor.needs["MEMORY_MB"],
                "disk": flavor.disk_gb,
            }
        for number, (cards, cpus) in enumerate(built):
            site.add_host(f"h{number}", "123"[:cards], VCPU=cpus)
        world = World(site, seed)
        for name in before:
            world.start(_FLAVORS[name])
        stock = stock_reader.StockReader(
            placement=cloud_client.from_endpoint(placement.url),
            compute=cloud_client.from_endpoint(nova.url, service=rest.COMPUTE),
            types=offered_devices.VgpuTypes(loader.load()),
            max_age_s=60.0,
            starts=len(during),
        ).read(None)
    levels = {
        flavor.name: flavor.get_stock(stock_file.OTHERS).level
        for flavor in stock.flavors
    }
    assert levels.keys() == _FLAVORS.keys() - {"plain"}
    for name, level in levels.items():
        is_possible = bool(world.list_fitting(_FLAVORS[name]))
        assert is_possible == (level is not stock_levels.StockLevel.NONE), name
    for name in during:
        world.start(_FLAVORS[name])
    for name, level in levels.items():
        if level is stock_levels.StockLevel.MANY:
            assert world.list_fitting(_FLAVORS[name]), name
