# SPDX-License-Identifier: Apache-2.0
"""CloudKitty with a price for each profile, on MariaDB.

Its storage of version 1 is SQL; those of version 2 are servers of their own
(InfluxDB, OpenSearch, Loki). Its migrations fail on SQLite: one of them reads
new columns over a second connection before the first one has committed them.

Its processor waits until a period is over. Here each period is given to its
worker, which collects, rates and stores it.
"""

import datetime
import decimal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloudkitty import collector, orchestrator, service, storage
from cloudkitty.db import api as database
from cloudkitty.rating.hash.db import api as hashmap

from tests.functional.contrib.monitoring.metering import clouds

CONFIGURATION = """
[DEFAULT]
transport_url = fake://
[database]
connection = mysql+pymysql://root@localhost/cloudkitty?unix_socket={database}
[storage]
version = 1
backend = sqlalchemy
[collect]
collector = gnocchi
metrics_conf = {metrics}
period = {period_s}
[orchestrator]
max_threads = 1
[collector_gnocchi]
gnocchi_auth_type = basic
gnocchi_user = admin
gnocchi_endpoint = {gnocchi}
"""
HOUR_S = 3600


def configure(
    place: Path, cloud: clouds.Gnocchi, metrics: Path, period_s: int
) -> None:
    """Configure CloudKitty in this process, and create its tables."""
    clouds.execute(cloud.database, "CREATE DATABASE cloudkitty")
    file = place / "cloudkitty.conf"
    file.write_text(
        CONFIGURATION.format(
            database=cloud.database,
            gnocchi=cloud.url,
            metrics=metrics,
            period_s=period_s,
        )
    )
    for words in (
        ("cloudkitty-dbsync", "upgrade"),
        ("cloudkitty-storage-init",),
    ):
        name, *arguments = words
        subprocess.run(  # noqa: S603 - our own words
            [
                Path(sys.executable).with_name(name),
                *("--config-file", file),
                *arguments,
            ],
            check=True,
            capture_output=True,
        )
    service.prepare_service(["cloudkitty", "--config-file", str(file)])


def set_prices(
    prices: Mapping[str, decimal.Decimal],
    period_s: int,
    start: datetime.datetime,
) -> None:
    """Enable the module hashmap with the price of an hour of each profile.

    A mapping is the price of a period.
    """
    rules = hashmap.get_instance()
    rated = rules.create_service("accelerator")
    field = rules.create_field(rated.service_id, "profile")
    for profile, price in prices.items():
        rules.create_mapping(
            cost=price * period_s / HOUR_S,
            map_type="flat",
            value=profile,
            field_id=field.field_id,
            start=start,
            name=profile,
            created_by="operator",
        )
    database.get_instance().get_module_info().set_state("hashmap", True)


def rate(
    projects: Iterable[str], periods: Iterable[datetime.datetime]
) -> None:
    """Collect, rate and store periods, given by their beginnings."""
    begins = list(periods)
    for project in projects:
        worker = orchestrator.Worker(
            collector.get_collector(), storage.get_storage(), project, 0
        )
        for begin in begins:
            worker.do_execute_scope_processing(begin)


def sum_by_project(
    begin: datetime.datetime, end: datetime.datetime
) -> dict[str, decimal.Decimal]:
    """Return the bill of each project, as CloudKitty's summary has it."""
    total = storage.get_storage().total(
        begin=begin, end=end, groupby=["project_id"]
    )
    return {
        row["tenant_id"]: decimal.Decimal(row["rate"]).quantize(
            decimal.Decimal("0.0001")
        )
        for row in total["results"]
    }
