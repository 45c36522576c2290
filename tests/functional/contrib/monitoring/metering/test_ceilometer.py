# SPDX-License-Identifier: Apache-2.0
"""A real ceilometer-polling meters the partitions of servers.

libvirt's test driver has a domain with Nova's metadata, and a status file its
partitions. CloudKitty and Ceilometer check the definitions of contrib/.
"""

import dataclasses
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ceilometer import sample, service
from ceilometer.publisher import gnocchi as publisher
from cloudkitty.collector import gnocchi, prometheus
from prometheus_client import parser
from stevedore import extension

from nova_accel.config import conf
from nova_accel.model import usage
from placement_sync.audit import metering
from placement_sync.daemon import status, usage_rows

CONTRIB = Path(__file__).resolve().parents[5] / "contrib"
SERVER = "5b1d6f0e-0000-4000-8000-00000000000a"
PROJECT, USER = "9c2e4d1b7a5f4c0e8d3b6a9f1e2d3c4b", "1f0c7b2d5e8a4936b1d0c2e3"
NODE = f"""
<node>
  <domain type="test">
    <name>instance-00000001</name>
    <uuid>{SERVER}</uuid>
    <memory>1024</memory>
    <os><type arch="i686">hvm</type></os>
    <metadata>
      <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
        <nova:name>gpu-server</nova:name>
        <nova:flavor name="gpu" id="7">
          <nova:memory>1</nova:memory><nova:disk>1</nova:disk>
          <nova:swap>0</nova:swap><nova:ephemeral>0</nova:ephemeral>
          <nova:vcpus>1</nova:vcpus>
        </nova:flavor>
        <nova:owner>
          <nova:user uuid="{USER}">u</nova:user>
          <nova:project uuid="{PROJECT}">p</nova:project>
        </nova:owner>
      </nova:instance>
    </metadata>
  </domain>
</node>
"""
CONFIGURATION = """
[DEFAULT]
transport_url = fake://
libvirt_uri = test://{node}
[compute]
instance_discovery_method = libvirt_metadata
fetch_extra_metadata = False
[polling]
cfg_file = {polling}
enable_prometheus_exporter = True
prometheus_listen_addresses = 127.0.0.1:{port}
[nova_accel]
state_dir = {state}
"""
COMPUTE = usage.EngineUsage(engine="compute", ratio=0.75)
ROW = usage_rows.ServerUsage(
    server=SERVER,
    project=PROJECT,
    device="0000:3b:00.0",
    profile="T4-4Q",
    partition="83c32df7-d52e-4ec1-9668-1f3c7e4df107",
    resource_class="VGPU",
    memory_total=4096 << 20,
    engines=(COMPUTE,),
)
# Attached while the server ran; a source without figures.
ATTACHED = dataclasses.replace(
    ROW, partition="0000:af:00.4", memory_total=None, engines=()
)
# Its server has no domain here any more.
ENDED = dataclasses.replace(ROW, server="ended")


def write_status(state: Path, age_s: float = 0.0) -> None:
    record = status.Status(
        writer="nova-compute",
        started=1.0,
        succeeded=time.time() - age_s,
        interval_s=60.0,
        servers=(ROW, ATTACHED, ENDED),
    )
    directory = state / "status"
    directory.mkdir(parents=True)
    (directory / "nova-compute.json").write_text(json.dumps(record.as_dict()))


@pytest.fixture
def series(tmp_path: Path) -> Iterator[dict[str, list[float]]]:
    """Yield the samples of a polling agent by meter, sorted."""
    state, node = tmp_path / "state", tmp_path / "node.xml"
    write_status(state)
    node.write_text(NODE)
    polling = yaml.safe_load((CONTRIB / "ceilometer/polling.yaml").read_text())
    polling["sources"][0]["interval"] = 1
    (tmp_path / "polling.yaml").write_text(yaml.safe_dump(polling))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    configuration = tmp_path / "ceilometer.conf"
    configuration.write_text(
        CONFIGURATION.format(
            node=node,
            polling=tmp_path / "polling.yaml",
            port=port,
            state=state,
        )
    )
    with (tmp_path / "log").open("wb") as log:
        agent = subprocess.Popen(  # noqa: S603 - our own words
            [
                Path(sys.executable).with_name("ceilometer-polling"),
                "--polling-namespaces",
                "compute",
                "--config-file",
                configuration,
            ],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    try:
        yield await_samples(port, tmp_path / "log")
    finally:
        agent.terminate()
        agent.wait(30)


def await_samples(port: int, log: Path) -> dict[str, list[float]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.25)
        try:
            with opener.open(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
        except OSError:
            continue  # it has not started yet
        samples: dict[str, list[float]] = {}
        for family in parser.text_string_to_metric_families(text):
            for each in family.samples:
                if each.name.startswith("ceilometer_accelerator_"):
                    assert each.labels["project"] == PROJECT
                    samples.setdefault(each.name, []).append(each.value)
        if len(samples) == 3:
            return {name: sorted(each) for name, each in samples.items()}
    pytest.fail(log.read_text()[-4000:])


def test_each_partition_is_a_resource(series: dict[str, list[float]]) -> None:
    assert series == {
        "ceilometer_accelerator_units": [1, 1],
        "ceilometer_accelerator_memory": [4096],
        "ceilometer_accelerator_utilisation": [75],
    }


def read_servers(state: Path) -> dict[str, Any]:
    configuration = service.prepare_service(argv=[], config_files=[])
    settings = conf.read_settings(configuration)
    return dict(
        metering.read_servers(
            dataclasses.replace(settings, state_dir=str(state))
        )
    )


@pytest.mark.parametrize(("age_s", "count"), [(60.0, 2), (600.0, 0)])
def test_a_stale_status_meters_nothing(
    tmp_path: Path, age_s: float, count: int
) -> None:
    write_status(tmp_path, age_s)
    assert len(read_servers(tmp_path)) == count


def test_without_nova_compute_nothing_is_metered(tmp_path: Path) -> None:
    assert read_servers(tmp_path) == {}


# -- definitions ----------------------------------------------------------


def read_definition() -> Any:
    text = (CONTRIB / "ceilometer/gnocchi_resources.yaml").read_text()
    (definition,) = yaml.safe_load(text)["resources"]
    plugins: Any = extension.ExtensionManager("ceilometer.event.trait_plugin")
    return publisher.ResourcesDefinition(definition, "low", None, plugins)


def test_each_meter_and_attribute_is_defined_in_gnocchi() -> None:
    definition = read_definition()
    assert set(definition.metrics) == {
        pollster.meter
        for pollster in (
            metering.UnitsPollster,
            metering.MemoryPollster,
            metering.UtilisationPollster,
        )
    }
    measured = sample.Sample(
        name="accelerator.units",
        type="gauge",
        unit="unit",
        volume=1,
        user_id=USER,
        project_id=PROJECT,
        resource_id=f"{SERVER}-{ROW.partition}",
        resource_metadata=metering.describe(ROW) | {"instance_host": "gpu-01"},
    )
    assert definition.sample_attributes(measured) == {
        "server_id": SERVER,
        "profile": "T4-4Q",
        "device": "0000:3b:00.0",
        "resource_class": "VGPU",
        "host": "gpu-01",
    }


@pytest.mark.parametrize(
    ("name", "collector"),
    [
        ("gnocchi", gnocchi.GnocchiCollector),
        ("prometheus", prometheus.PrometheusCollector),
    ],
)
def test_cloudkitty_accepts_its_metrics(name: str, collector: Any) -> None:
    text = (CONTRIB / f"cloudkitty/{name}.yml").read_text()
    checked = collector.check_configuration(yaml.safe_load(text))
    units = [m for m in checked.values() if m["alt_name"] == "accelerator"]
    assert len(units) == 1
    assert "profile" in units[0]["metadata"]


def test_meters_of_cloudkitty_are_published() -> None:
    text = (CONTRIB / "cloudkitty/gnocchi.yml").read_text()
    metrics = yaml.safe_load(text)["metrics"]
    definition = read_definition()
    assert metrics.keys() <= definition.metrics.keys()
    for metric in metrics.values():
        assert metric["extra_args"]["resource_type"] == "accelerator"
        assert set(metric["metadata"]) <= metering.describe(ROW).keys()
