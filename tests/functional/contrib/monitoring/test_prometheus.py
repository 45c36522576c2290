# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboards in a real Prometheus that scrapes the metrics.

Each expression has to give values: a metric or label that does not exist
gives none.
"""

import dataclasses
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel import errors
from placement_sync.daemon import metrics, operations, status, usage_rows
from tests.unit.placement_sync.daemon import test_metrics

CONTRIB = pathlib.Path(__file__).resolve().parents[4] / "contrib"
RULES = CONTRIB / "prometheus"
BOARDS = sorted((CONTRIB / "grafana").glob("*.json"))
# Values of Grafana's variables: all hosts and projects.
VARIABLES = {
    "writer": "nova-compute",
    "host": ".*",
    "project": ".*",
    "__rate_interval": "1m",
}
CONFIGURATION = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: nova-accel
    static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
"""
DEADLINE_S = 30

if not shutil.which("promtool"):
    pytest.skip("there is no Prometheus", allow_module_level=True)


class Exporter(http.server.ThreadingHTTPServer):
    """Server of a metrics file, as node exporter's textfile collector."""

    def __init__(
        self, published: metrics.Metrics, textfile: pathlib.Path
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.published, self.textfile = published, textfile


class Handler(http.server.BaseHTTPRequestHandler):
    server: Exporter

    def do_GET(self) -> None:
        self.server.published.update(build_status())
        text = self.server.textfile.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None:
        pass


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def query(port: int, expression: str) -> list[dict[str, Any]]:
    """Return the values of an expression.

    :raises urllib.error.HTTPError: it is malformed.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    words = urllib.parse.urlencode({"query": expression})
    url = f"http://127.0.0.1:{port}/api/v1/query?{words}"
    with opener.open(url, timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def build_status() -> status.Status:
    """Return a status in which each panel has something to show."""
    idle = dataclasses.replace(
        test_metrics.GOOD.servers[0],
        partition="idle",
        engines=(
            dataclasses.replace(
                test_metrics.GOOD.servers[0].engines[0], ratio=0.0
            ),
        ),
    )
    computing = dataclasses.replace(
        test_metrics.GOOD.device_usage[0],
        engines=test_metrics.GOOD.servers[0].engines,
    )
    return dataclasses.replace(
        test_metrics.GOOD,
        servers=(*test_metrics.GOOD.servers, idle),
        room=(
            *test_metrics.GOOD.room,
            usage_rows.DeviceRoom(
                address="0000:43:00.0", model="T4", state="drained"
            ),
        ),
        device_usage=(computing,),
        attempted=time.time(),
        succeeded=time.time(),
        sampled=time.time(),
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start Prometheus on the metrics of a nova-compute; yield its port."""
    place = tmp_path_factory.mktemp("prometheus")
    counted, textfile = operations.Operations(), place / "accel.prom"
    published = metrics.Metrics(str(textfile), counted)
    published.publish(build_status())
    operate(counted)
    exporter = Exporter(published, textfile)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    target, port = exporter.server_port, find_port()
    (place / "prometheus.yml").write_text(
        CONFIGURATION.format(
            rules=RULES / "nova-accel.rules.yml", target=target
        )
    )
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(  # noqa: S603 - our own words
            [
                shutil.which("prometheus") or "",
                f"--config.file={place / 'prometheus.yml'}",
                f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "NO_PROXY": "*"},
        )
    try:
        await_scrapes(port, counted, (place / "log"))
        yield port
    finally:
        server.kill()
        server.wait()
        exporter.shutdown()
        exporter.server_close()


def operate(counted: operations.Operations) -> None:
    with counted.measure("spawn"):
        pass
    with pytest.raises(errors.ClaimError), counted.measure("attach"):
        raise errors.ClaimError("server", "no room")


def await_scrapes(
    port: int, counted: operations.Operations, log: pathlib.Path
) -> None:
    """Wait until counters have increased between two scrapes."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        operate(counted)
        try:
            increases = "increase(nova_accel_refusals_total[1m]) > 0"
            records = "nova_accel:project_partitions:count"
            if query(port, increases) and query(port, records):
                return
        except OSError:
            pass  # it has not started yet
        time.sleep(0.25)
    pytest.fail(log.read_text())


def list_expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def substitute(expression: str) -> str:
    return re.sub(r"\$(\w+)", lambda m: VARIABLES[m[1]], expression)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_each_panel_has_values(prometheus: int, path: pathlib.Path) -> None:
    board = json.loads(path.read_text())
    empty = [
        title
        for title, expression in list_expressions(board)
        if not query(prometheus, substitute(expression))
    ]
    assert empty == []


@pytest.mark.parametrize(
    "path", [*BOARDS, RULES / "nova-accel.rules.yml"], ids=lambda p: p.name
)
def test_each_metric_exists(prometheus: int, path: pathlib.Path) -> None:
    """Also of expressions that have a value without any metric."""
    names = set(re.findall(r"\bnova_accel_\w+", path.read_text()))
    assert names
    assert [name for name in names if not query(prometheus, name)] == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_each_variable_has_values(prometheus: int, path: pathlib.Path) -> None:
    board = json.loads(path.read_text())
    variables = board["templating"]["list"]
    used = set(re.findall(r"\$(\w+)", "".join(
        expression for _, expression in list_expressions(board)
    )))  # fmt: skip
    names = {variable["name"] for variable in variables}
    assert names - {"datasource"} == used - {"__rate_interval"}
    for variable in variables:
        if variable["type"] == "query":
            metric, label = re.findall(
                r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
            )[0]
            series = query(prometheus, f'{metric}{{{label}!=""}}')
            assert series, variable["name"]


def test_each_rule_is_evaluated(prometheus: int) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://127.0.0.1:{prometheus}/api/v1/rules"
    with opener.open(url, timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    text = (RULES / "nova-accel.rules.yml").read_text()
    written = re.findall(r"- (?:alert|record): (\S+)", text)
    assert sorted(rule["name"] for rule in rules) == sorted(written)
    assert [r["name"] for r in rules if r["health"] != "ok"] == []
    pending = {rule["name"] for rule in rules if rule.get("alerts")}
    assert {"AcceleratorDrainedLong", "AcceleratorUnlicensed"} <= pending
    assert "AcceleratorReportStale" not in pending


def test_the_rules_fire_for_their_causes() -> None:
    files = sorted(RULES.glob("*.test.yml"))
    assert files
    outcome = subprocess.run(  # noqa: S603 - our own words
        [shutil.which("promtool") or "", "test", "rules", *files],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
