# SPDX-License-Identifier: Apache-2.0
"""Metrics in the file are valid for Prometheus's own parser."""

import dataclasses
import os
import pathlib
import re
import stat
import tempfile
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.discovery import vgpu_guests
from nova_accel.model import usage
from placement_sync.daemon import metrics, operations, status, usage_rows

parser: Any = pytest.importorskip("prometheus_client.parser")

ROOT = pathlib.Path(__file__).resolve().parents[4]
WRITER = {"writer": "nova-compute"}
GOOD = status.Status(
    writer="nova-compute",
    version="1.2.3",
    started=1000.0,
    attempted=2000.5,
    succeeded=2001.0,
    seconds=0.5,
    interval_s=60.0,
    reads=3,
    writes=2,
    calls={"CreateProvider": 1, "SetInventories": 1},
    devices={"ok": 2, "faulted": 1, "drained": 0},
    use={"VGPU": status.ClassUsage(total=8, reserved=4, claimed=3)},
    problems=(model.Problem(where="0000:05:00.0", reason="EIO"),),
    failed_checks=("pci.bars",),
    guests=(
        vgpu_guests.VgpuGuest(
            server="s1",
            device="0000:41:00.0",
            profile="L40S-8Q",
            handle="0000:41:00.4",
            license="unlicensed_restricted",
            driver="580.95.02",
        ),
        vgpu_guests.VgpuGuest(
            server="s2",
            device="0000:41:00.0",
            profile="L40S-8Q",
            handle="0000:41:00.5",
        ),
    ),
    room=(
        usage_rows.DeviceRoom(
            address="0000:41:00.0",
            model="T4",
            state="ok",
            free={"T4-8Q": 1},
            fragmentation=0.25,
        ),
        usage_rows.DeviceRoom(
            address="0000:42:00.0", model="T4", state="ok", free={"T4-8Q": 2}
        ),
    ),
    servers=(
        usage_rows.ServerUsage(
            server="server",
            project="project",
            device="0000:41:00.0",
            profile="T4-8Q",
            partition="mdev",
            memory_total=8 << 30,
            memory_used=5 << 30,
            engines=(usage.EngineUsage(engine="compute", ratio=0.75),),
        ),
        usage_rows.ServerUsage(
            server="server",
            project="project",
            device="0000:42:00.0",
            profile="T4-8Q",
            partition="unknown",
        ),
    ),
    sampled=2002.0,
    device_usage=(
        usage.DeviceUsage(
            address="0000:41:00.0",
            engines=(usage.EngineUsage(engine="encoder", ratio=0),),
            memory_used=6 << 30,
            memory_total=16 << 30,
            power_watts=70.5,
            temperature_celsius=61,
        ),
    ),
)
FAILED = dataclasses.replace(
    GOOD, error="Placement is away", attempted=3000.0, calls={}, reads=0,
    writes=0,
)  # fmt: skip

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Series:
    series: Series = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in series
            series[key] = sample.value
    return series


def value(series: Series, name: str, **labels: str) -> float | None:
    key = (f"nova_accel_{name}", frozenset({**WRITER, **labels}.items()))
    return series.get(key)


def operated() -> operations.Operations:
    """Return operations: two spawns, and an attachment that was refused."""
    times = iter((0.0, 0.4, 10.0, 12.0, 20.0))
    counted = operations.Operations(lambda: next(times))
    for _ in range(2):
        with counted.measure("spawn"):
            pass
    with pytest.raises(errors.ClaimError), counted.measure("attach"):
        raise errors.ClaimError("server", "no room")
    return counted


def test_durations_are_a_histogram(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    metrics.Metrics(str(path), counted=operated()).publish(GOOD)
    series = parsed(path.read_text())
    spawn = {"operation": "spawn"}
    for bound, count in (("0.25", 0), ("0.5", 1), ("2.5", 2), ("+Inf", 2)):
        name = "operation_seconds_bucket"
        assert value(series, name, **spawn, le=bound) == count
    assert value(series, "operation_seconds_count", **spawn) == 2
    assert value(series, "operation_seconds_sum", **spawn) == 2.4
    assert 'operation="attach",reason="claim"' in path.read_text()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.ServiceError("GET", "/", None, "away"), "service"),
        (RuntimeError("secret of a tenant"), "other"),
    ],
)
def test_reasons_of_refusals_are_few(error: Exception, reason: str) -> None:
    assert operations.get_reason(error) == reason


def test_a_single_pass_has_no_interval(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "once.prom"
    once = dataclasses.replace(GOOD, interval_s=0.0)
    metrics.Metrics(str(file)).publish(once)
    assert "nova_accel_pass_seconds{" in file.read_text()
    assert "nova_accel_interval_seconds{" not in file.read_text()


def check(series: Series) -> None:
    assert value(series, "build_info", version="1.2.3") == 1
    assert value(series, "last_success_timestamp_seconds") == 2001.0
    assert value(series, "last_attempt_timestamp_seconds") == 2000.5
    assert value(series, "pass_seconds") == 0.5
    assert value(series, "interval_seconds") == 60
    assert value(series, "problems") == 1
    assert value(series, "failed_check", check="pci.bars") == 1
    guest = {"device": "0000:41:00.0", "profile": "L40S-8Q"}
    for server, state, driver in (
        ("s1", "unlicensed_restricted", "580.95.02"),
        ("s2", "unknown", ""),
    ):
        labels = guest | {"server": server, "state": state, "driver": driver}
        assert value(series, "vgpu_license", **labels) == 1
    assert value(series, "passes_total", outcome="ok") == 1
    assert value(series, "passes_total", outcome="failed") == 0
    assert value(series, "devices", state="ok") == 2
    assert value(series, "devices", state="drained") == 0
    for kind, number in (("total", 8), ("reserved", 4), ("claimed", 3)):
        units = value(series, "units", resource_class="VGPU", kind=kind)
        assert units == number
    made = value(series, "placement_calls_total", kind="CreateProvider")
    assert made == 1
    assert value(series, "placement_requests_total", kind="read") == 3


DEVICE = {"device": "0000:41:00.0"}
SERVER = {
    "server": "server",
    "project": "project",
    "device": "0000:41:00.0",
    "profile": "T4-8Q",
    "partition": "mdev",
}


@pytest.fixture
def series(tmp_path: pathlib.Path) -> Series:
    path = tmp_path / "accel.prom"
    metrics.Metrics(str(path)).publish(GOOD)
    return parsed(path.read_text())


def test_metrics_of_devices(series: Series) -> None:
    info = {**DEVICE, "model": "T4", "state": "ok"}
    assert value(series, "device_info", **info) == 1
    assert value(series, "free_profiles", profile="T4-8Q") == 3
    assert value(series, "sample_timestamp_seconds") == 2002
    for name, expected in (
        ("fragmentation_ratio", 0.25),
        ("memory_used_bytes", 6 << 30),
        ("memory_bytes", 16 << 30),
        ("power_watts", 70.5),
        ("temperature_celsius", 61),
    ):
        assert value(series, f"device_{name}", **DEVICE) == expected
    engine = {**DEVICE, "engine": "encoder"}
    assert value(series, "device_utilisation_ratio", **engine) == 0


def test_metrics_of_servers(series: Series) -> None:
    compute = {**SERVER, "engine": "compute", "scope": "device"}
    assert value(series, "server_info", **SERVER) == 1
    assert value(series, "server_utilisation_ratio", **compute) == 0.75
    assert value(series, "server_memory_used_bytes", **SERVER) == 5 << 30
    assert value(series, "server_memory_bytes", **SERVER) == 8 << 30


def test_an_unknown_figure_has_no_series(series: Series) -> None:
    unknown = {"device": "0000:42:00.0"}
    assert value(series, "device_power_watts", **unknown) is None
    server = SERVER | unknown | {"partition": "unknown"}
    assert value(series, "server_info", **server) == 1
    assert value(series, "server_memory_used_bytes", **server) is None


def test_a_sample_counts_no_pass_and_removes_servers_that_ended(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "accel.prom"
    made = metrics.Metrics(str(path))
    made.publish(GOOD)
    made.update(dataclasses.replace(GOOD, servers=()))
    text = path.read_text()
    assert value(parsed(text), "passes_total", outcome="ok") == 1
    assert "project" not in text


def test_a_file_for_node_exporter(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    mask = os.umask(0o077)
    try:
        metrics.Metrics(str(path)).publish(GOOD)
    finally:
        os.umask(mask)
    check(parsed(path.read_text()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["accel.prom"]


def test_old_states_and_classes_disappear(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    made = metrics.Metrics(str(path))
    made.publish(GOOD)
    made.publish(
        dataclasses.replace(
            GOOD, devices={"ok": 1}, use={"FPGA": status.ClassUsage(total=1)}
        )
    )
    series = parsed(path.read_text())
    assert value(series, "devices", state="faulted") is None
    assert value(series, "units", resource_class="VGPU", kind="total") is None
    assert value(series, "units", resource_class="FPGA", kind="total") == 1


def test_the_manual_has_each_metric_and_no_other(
    tmp_path: pathlib.Path,
) -> None:
    manual = (ROOT / "doc/source/admin/monitoring.rst").read_text()
    path = tmp_path / "accel.prom"
    metrics.Metrics(str(path), counted=operated()).publish(GOOD)
    real = {name for name, _ in parsed(path.read_text())}
    real = {re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name)
            for name in real}  # fmt: skip
    documented = set(re.findall(r"``(nova_accel_\w+)``", manual))
    assert documented == real
    assert set(re.findall(r"nova_accel_\w+", manual)) <= real


outcomes = st.sampled_from([GOOD, FAILED, dataclasses.replace(GOOD, undone=1)])


@given(st.lists(outcomes, min_size=1, max_size=8))
def test_counters_never_decrease(passes: list[status.Status]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place, "accel.prom")
        made = metrics.Metrics(str(path))
        last: Series = {}
        for number, status_ in enumerate(passes, 1):
            made.publish(status_)
            now = {
                key: count
                for key, count in parsed(path.read_text()).items()
                if key[0].endswith("_total")
            }
            assert all(now[key] >= count for key, count in last.items())
            outcomes_ = [n for k, n in now.items() if "passes_total" in k[0]]
            assert sum(outcomes_) == number
            last = now
    failures = value(last, "passes_total", outcome="failed")
    assert [each.outcome for each in passes].count("failed") == failures


def test_a_failure_keeps_the_last_success(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    made = metrics.Metrics(str(path))
    made.publish(GOOD)
    made.publish(FAILED)
    series = parsed(path.read_text())
    assert value(series, "last_success_timestamp_seconds") == 2001.0
    assert value(series, "last_attempt_timestamp_seconds") == 3000.0
    assert value(series, "passes_total", outcome="failed") == 1


def test_no_timestamp_before_the_first_success(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    never = dataclasses.replace(FAILED, succeeded=None)
    metrics.Metrics(str(path)).publish(never)
    series = parsed(path.read_text())
    assert value(series, "last_success_timestamp_seconds") is None
    assert value(series, "last_attempt_timestamp_seconds") == 3000.0


def test_files_of_two_writers_do_not_conflict(tmp_path: pathlib.Path) -> None:
    texts = []
    for writer in ("nova-compute", "placement-sync"):
        path = tmp_path / f"{writer}.prom"
        good = dataclasses.replace(GOOD, writer=writer)
        metrics.Metrics(str(path)).publish(good)
        texts.append(parsed(path.read_text()))
    assert not texts[0].keys() & texts[1].keys()


def test_odd_names_are_escaped(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    odd = 'a "quoted"\\ name\nof two lines'
    named = dataclasses.replace(GOOD, writer=odd)
    metrics.Metrics(str(path)).publish(named)
    series = parsed(path.read_text())
    assert {dict(labels)["writer"] for _, labels in series} == {odd}


def test_an_unwritable_file_is_logged_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "collector"
    made = metrics.Metrics(str(place / "accel.prom"))
    made.publish(GOOD)
    made.publish(GOOD)
    assert len(caplog.records) == 1
    assert "metrics_textfile" in caplog.messages[0]
    place.mkdir()
    made.publish(GOOD)
    series = parsed((place / "accel.prom").read_text())
    assert value(series, "passes_total", outcome="ok") == 3


@pytest.mark.parametrize("path", ["accel.prom", "/tmp/accel.txt"])  # noqa: S108
def test_a_file_without_the_suffix_is_refused(path: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"\.prom"):
        metrics.Metrics(path)


def test_the_option_requires_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "prometheus_client", None)
    metrics.Metrics("").publish(GOOD)
    with pytest.raises(
        errors.ConfigurationError, match=r"install nova-accel\[metrics\]"
    ):
        metrics.Metrics("/x.prom")


def test_passes_and_samples_write_whole_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "accel.prom"
    made = metrics.Metrics(str(path))
    made.publish(GOOD)

    def sample() -> None:
        for _ in range(20):
            made.update(GOOD)

    threads = [threading.Thread(target=sample) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        made.publish(GOOD)
        check_some(parsed(path.read_text()))
    for thread in threads:
        thread.join()
    series = parsed(path.read_text())
    assert value(series, "passes_total", outcome="ok") == 21


def check_some(series: Series) -> None:
    assert value(series, "placement_requests_total", kind="read") is not None
    assert value(series, "last_success_timestamp_seconds") == 2001.0
