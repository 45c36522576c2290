# SPDX-License-Identifier: Apache-2.0
"""Samples of usage end up in the status; a failing source is logged once."""

import threading
import time
from pathlib import Path

import pytest

from nova_accel.config import policy
from nova_accel.discovery import change_detection, snapshot
from nova_accel.host.execute import action_executor
from nova_accel.host.execute.technologies import qat_telemetry
from nova_accel.host.sysfs import fs
from nova_accel.vendors import qat
from placement_sync.daemon import heartbeat
from tests.hosts import build
from tests.unit.virt_hooks.report import pass_runners
from virt_hooks.report import usage_extension
from virt_hooks.spawn import lifecycle

pytestmark = pytest.mark.usefixtures("own_rights")
QAT = "0000:6b:00.0"


def start(root: Path) -> lifecycle.Lifecycle:
    """Return the Lifecycle of a host with a QAT device that has sensors."""
    description = dict(build.load("qat"))
    description["functions"] = [
        function | {"attributes": function["attributes"] | {
            "hwmon/hwmon1/temp1_input": "45000\n"}}
        for function in description["functions"]
        if function["address"] == QAT
    ]  # fmt: skip
    build.build(description, root)
    drivers = {"qat": qat.QatDriver()}
    rules = policy.DeviceRules()
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root), drivers, rules
    )
    life = lifecycle.Lifecycle(
        drivers,
        rules,
        action_executor.Executor(str(root)),
        snapshot.Snapshot(detector),
    )
    life.host.refresh()
    assert [d.address for d in life.host.state.devices] == [QAT]
    return life


def sampler(
    root: Path, life: lifecycle.Lifecycle
) -> usage_extension.UsageSampler:
    beat = heartbeat.Heartbeat(str(root / "state"), "nova-compute", 60)
    return usage_extension.UsageSampler(str(root), life, beat, dict)


def write_telemetry(root: Path, control: str, data: str = "") -> None:
    place = root / f"sys/kernel/debug/qat_4xxx_{QAT}/telemetry"
    place.mkdir(parents=True, exist_ok=True)
    (place / "control").write_text(control)
    (place / "device_data").write_text(data)


def read_status(root: Path) -> heartbeat.Status:
    (status,) = heartbeat.read(str(root / "state"))
    return status


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = usage_extension.__name__
    return [r.getMessage() for r in caplog.records if r.name == name]


def test_all_sources_are_in_the_status(tmp_path: Path) -> None:
    life = start(tmp_path)
    write_telemetry(tmp_path, "1\n", "util_pke0    20\n")
    sampler(tmp_path, life).sample()
    status = read_status(tmp_path)
    (device,) = status.device_usage
    assert device.temperature_celsius == 45
    assert [engine.ratio for engine in device.engines] == [0.2]
    assert status.sample_problems == ()


def test_disabled_telemetry_is_logged_once_and_stays_disabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = start(tmp_path)
    write_telemetry(tmp_path, "0\n")
    sampling = sampler(tmp_path, life)
    sampling.sample()
    sampling.sample()
    (message,) = list_warnings(caplog)
    assert QAT in message
    assert "write 1 to telemetry/control" in message
    status = read_status(tmp_path)
    assert len(status.sample_problems) == 1
    assert [d.temperature_celsius for d in status.device_usage] == [45]
    control = next((tmp_path / "sys/kernel/debug").rglob("control"))
    assert control.read_text() == "0\n"


def test_a_source_that_raises_costs_its_own_figures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("the daemon did not start")

    life = start(tmp_path)
    monkeypatch.setattr(qat_telemetry, "read_telemetry", refuse)
    sampling = sampler(tmp_path, life)
    sampling.sample()
    sampling.sample()
    (message,) = list_warnings(caplog)
    assert "the daemon did not start" in message
    assert read_status(tmp_path).device_usage


def test_a_source_that_hangs_stops_neither_passes_nor_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ends = threading.Event(), threading.Event()

    def hang(*_: object) -> tuple[int, str, str]:
        began.set()
        ends.wait(30)
        return 0, "0", ""

    life = start(tmp_path)
    monkeypatch.setattr(qat_telemetry, "read_telemetry", hang)
    monkeypatch.setattr(usage_extension, "_STOP_S", 0.01)
    sampling = sampler(tmp_path, life)
    sampling.start(60)
    try:
        assert began.wait(10)
        life.host.refresh()
        assert life.claims() == ()
        sampling.stop()
    finally:
        ends.set()


@pytest.mark.parametrize("interval", [0, 1])
def test_the_service_samples_only_with_an_interval(
    tmp_path: Path, interval: int
) -> None:
    life = start(tmp_path)
    options = pass_runners.write_options(
        tmp_path / "nova.conf",
        tmp_path / "state",
        f"root = {tmp_path}\nsync_interval = 60\n"
        f"stats_interval = {interval}\n",
    )
    service = pass_runners.make(options, life)
    service.start()
    try:
        deadline = time.monotonic() + (10 if interval else 0.1)
        while not (is_sampled := has_sample(tmp_path)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
    finally:
        service.stop()
    assert is_sampled is bool(interval)


def has_sample(root: Path) -> bool:
    statuses = heartbeat.read(str(root / "state"))
    return any(status.sampled is not None for status in statuses)
