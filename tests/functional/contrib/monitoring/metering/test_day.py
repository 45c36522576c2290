# SPDX-License-Identifier: Apache-2.0
"""A scripted day is billed to the interval.

The pollsters poll each five minutes of the script, Ceilometer publishes to a
real Gnocchi, and CloudKitty collects, rates and stores each period of five
minutes from it.
"""

import collections
import dataclasses
import datetime
import decimal
import json
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ceilometer import service
from ceilometer.publisher import gnocchi as publisher
from cloudkitty.collector import gnocchi as collector
from oslo_config import cfg
from oslo_utils import netutils

from placement_sync.audit import metering
from placement_sync.daemon import status, usage_rows
from tests.functional.contrib.monitoring.metering import billing, clouds

pytestmark = pytest.mark.long
CONTRIB = Path(__file__).resolve().parents[5] / "contrib"
# Gnocchi dates a resource when it is created, and CloudKitty bills from then
# on: the script is that of tomorrow.
DAY = datetime.datetime.combine(
    datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1),
    datetime.time(tzinfo=datetime.UTC),
)
INTERVAL_S = 300
GIB = 1 << 30
POLLSTERS = (
    metering.UnitsPollster,
    metering.MemoryPollster,
    metering.UtilisationPollster,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """Time in which a server has a partition, as HH:MM."""

    project: str
    server: str
    profile: str
    begin: str
    end: str
    memory_gib: int

    @property
    def times(self) -> tuple[datetime.datetime, datetime.datetime]:
        return tuple(  # type: ignore[return-value]
            DAY
            + datetime.timedelta(hours=int(text[:2]), minutes=int(text[3:]))
            for text in (self.begin, self.end)
        )

    def seconds(self) -> float:
        begin, end = self.times
        return (end - begin).total_seconds()


# One server is spawned at 9:02, gets a profile at 10:07, is resized at 11:31,
# shelved at 12:45 and deleted at 13:30. Another one of another project runs
# for an hour.
SCRIPT = (
    Span(project="blue", server="one", profile="T4-4Q", begin="09:02",
         end="11:31", memory_gib=4),
    Span(project="blue", server="one", profile="T4-2Q", begin="10:07",
         end="12:45", memory_gib=2),
    Span(project="blue", server="one", profile="T4-8Q", begin="11:31",
         end="12:45", memory_gib=8),
    Span(project="red", server="two", profile="T4-8Q", begin="10:00",
         end="11:00", memory_gib=8),
)  # fmt: skip
BEGIN_H, END_H = 9, 14
# Of an hour.
PRICES = {
    "T4-2Q": decimal.Decimal("0.30"),
    "T4-4Q": decimal.Decimal("0.60"),
    "T4-8Q": decimal.Decimal("1.20"),
}


def list_periods() -> Iterator[datetime.datetime]:
    """Yield the beginnings of the intervals of the script."""
    for second in range(BEGIN_H * 3600, END_H * 3600, INTERVAL_S):
        yield DAY + datetime.timedelta(seconds=second)


def list_polls() -> Iterator[datetime.datetime]:
    for begin in list_periods():
        # A poll is somewhere in its interval.
        yield begin + datetime.timedelta(seconds=40)


def write_status(state: Path, now: datetime.datetime) -> None:
    """Write what nova-compute's status is at a time of the script."""
    servers = tuple(
        usage_rows.ServerUsage(
            server=span.server,
            project=span.project,
            device="0000:3b:00.0",
            profile=span.profile,
            partition=f"{span.profile}-mdev",
            resource_class="VGPU",
            memory_total=span.memory_gib * GIB,
        )
        for span in SCRIPT
        if span.times[0] <= now < span.times[1]
    )
    record = status.Status(
        writer="nova-compute",
        succeeded=time.time(),
        interval_s=60.0,
        servers=servers,
    )
    directory = state / "status"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "nova-compute.json").write_text(json.dumps(record.as_dict()))


def list_instances() -> list[Any]:
    """Return the instances of the host as Ceilometer discovers them."""
    return [
        types.SimpleNamespace(
            id=server,
            name=server,
            tenant_id=project,
            user_id="user",
            flavor={"name": "gpu", "vcpus": 1, "ram": 1, "disk": 1,
                    "ephemeral": 0},
            hostId="host",
            status="ACTIVE",
            image=None,
            metadata={},
            **{"OS-EXT-SRV-ATTR:host": "gpu-01"},
        )
        for server, project in {(s.server, s.project) for s in SCRIPT}
    ]  # fmt: skip


def configure(place: Path, url: str) -> cfg.ConfigOpts:
    file = place / "ceilometer.conf"
    file.write_text(
        f"[nova_accel]\nstate_dir = {place / 'state'}\n"
        "[service_credentials]\nauth_type = gnocchi-basic\nuser = admin\n"
        f"endpoint = {url}\n"
    )
    configuration: cfg.ConfigOpts = service.prepare_service(
        argv=[], config_files=[str(file)]
    )
    return configuration


def meter(place: Path, url: str) -> None:
    """Poll and publish the whole script."""
    configuration = configure(place, url)
    definitions = CONTRIB / "ceilometer/gnocchi_resources.yaml"
    merged = place / "gnocchi_resources.yaml"
    stock = Path(publisher.__file__).with_name("data") / merged.name
    resources = yaml.safe_load(stock.read_text())
    resources["resources"] += yaml.safe_load(definitions.read_text())[
        "resources"
    ]
    merged.write_text(yaml.safe_dump(resources))
    published = publisher.GnocchiPublisher(
        configuration,
        netutils.urlsplit(
            "gnocchi://?enable_filter_project=false"
            f"&resources_definition_file={merged}"
        ),
    )
    pollsters = [each(configuration) for each in POLLSTERS]
    for now in list_polls():
        write_status(place / "state", now)
        cache: dict[str, Any] = {}
        samples = [
            sample
            for pollster in pollsters
            for sample in pollster.get_samples(None, cache, list_instances())
        ]
        for sample in samples:
            sample.timestamp = now.replace(tzinfo=None).isoformat()
        published.publish_samples(samples)


def collect(url: str, metric: str) -> Mapping[tuple[str, str], float]:
    """Return what CloudKitty bills, by project and profile, times seconds."""
    text = (CONTRIB / "cloudkitty/gnocchi.yml").read_text()
    for name, value in (
        ("gnocchi_auth_type", "basic"),
        ("gnocchi_user", "admin"),
        ("gnocchi_endpoint", url),
    ):
        cfg.CONF.set_override(name, value, "collector_gnocchi")
    collected = collector.GnocchiCollector(
        period=INTERVAL_S, conf=yaml.safe_load(text)
    )
    # CloudKitty appends the name of the type to rate.
    (name,) = (n for n in collected.conf if n.split("@#")[0] == metric)
    bill: dict[tuple[str, str], float] = collections.defaultdict(float)
    for begin in list_periods():
        end = begin + datetime.timedelta(seconds=INTERVAL_S)
        for point in collected.fetch_all(name, begin, end):
            key = point.groupby["project_id"], point.metadata["profile"]
            bill[key] += float(point.qty) * INTERVAL_S
    return bill


@pytest.fixture(scope="module")
def cloud(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[clouds.Gnocchi]:
    place = tmp_path_factory.mktemp("day")
    with clouds.gnocchi(place) as cloud:
        meter(place, cloud.url)
        clouds.await_measures(cloud.url)
        yield cloud


def test_units_are_billed_to_the_interval(cloud: clouds.Gnocchi) -> None:
    bill = collect(cloud.url, "accelerator.units")
    expected = {(s.project, s.profile): s.seconds() for s in SCRIPT}
    assert bill.keys() == expected.keys()
    for key, seconds in expected.items():
        assert abs(bill[key] - seconds) <= INTERVAL_S, key


def test_memory_is_billed_to_the_interval(cloud: clouds.Gnocchi) -> None:
    bill = collect(cloud.url, "accelerator.memory")
    for span in SCRIPT:
        billed = bill[span.project, span.profile]
        expected = span.seconds() * span.memory_gib
        assert abs(billed - expected) <= INTERVAL_S * span.memory_gib, span


def test_the_bill_of_each_project_is_that_of_the_script(
    cloud: clouds.Gnocchi, tmp_path: Path
) -> None:
    metrics = CONTRIB / "cloudkitty/gnocchi.yml"
    billing.configure(tmp_path, cloud, metrics, INTERVAL_S)
    start = DAY - datetime.timedelta(days=62)
    billing.set_prices(PRICES, INTERVAL_S, start)
    billing.rate({span.project for span in SCRIPT}, list_periods())
    bill = billing.sum_by_project(DAY, DAY + datetime.timedelta(days=1))
    # A period is billed if the partition was there when it was polled.
    polled, scripted, tolerance = (
        collections.defaultdict[str, decimal.Decimal](decimal.Decimal)
        for _ in range(3)
    )
    for span in SCRIPT:
        price = PRICES[span.profile] * INTERVAL_S / billing.HOUR_S
        begin, end = span.times
        polled[span.project] += price * sum(
            begin <= now < end for now in list_polls()
        )
        periods = decimal.Decimal(span.seconds()) / INTERVAL_S
        scripted[span.project] += price * periods
        tolerance[span.project] += price
    assert bill == polled
    for project, price in scripted.items():
        assert abs(bill[project] - price) <= tolerance[project], project
