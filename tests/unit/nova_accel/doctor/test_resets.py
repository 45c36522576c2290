# SPDX-License-Identifier: Apache-2.0
"""The check of resets says what the scrub will do, and inspect agrees."""

import json
from pathlib import Path
from typing import Any

import pytest

from nova_accel.doctor import check_report, checked_host, host_checks, registry
from nova_accel.host.sysfs import host_reader
from tests.hosts import build, look

GPU, PORT = "0000:01:00.0", "0000:00:01.0"
OTHER = "0000:02:00.0"
CHECKS = registry.select(registry.list_checks(), (), names=("pci.reset",))
Level = host_checks.Level


def make(root: Path, *methods: str | None, **facts: Any) -> Path:
    """Make a host with a card, of one function for each method.

    Another function shows that the kernel's files of resets are there.
    """
    functions = [
        {
            "address": f"0000:01:00.{number}",
            "id": "10de:2236",
            "class": "040300" if number else "030200",
            "group": 1,
            "below": [PORT],
            "attributes": {"reset_method": words},
            **facts,
        }
        for number, words in enumerate(methods)
    ]
    nic = {"address": OTHER, "id": "8086:1572", "class": "020000"}
    return build.build({"functions": [*functions, nic]}, root)


def write_line(root: Path, line: object) -> None:
    """Write nova.conf with a line of device_spec."""
    conf = root / "etc/nova/nova.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(f"[nova_accel]\ndevice_spec = {json.dumps(line)}\n")


def check(root: Path, line: object = None) -> host_checks.CheckResult:
    if line is not None:
        write_line(root, line)
    host = checked_host.CheckedHost(host_reader.HostReader(root))
    (result,) = registry.run(CHECKS, host)
    return result


@pytest.mark.parametrize(
    ("methods", "level", "words"),
    [
        (("flr bus",), Level.OK, "guests: flr bus"),
        (("bus",), Level.OK, "guests: bus"),
        (("bus", None), Level.OK, f"bus of both functions through {PORT}"),
        (("bus", "pm", "pm"), Level.OK, "bus of all 3 functions"),
        (("flr", "flr"), Level.OK, "guests: flr"),
        (("pm", None), Level.OK, f"pm ({GPU}), none (0000:01:00.1)"),
        ((None,), Level.FAIL, "the kernel knows no way to reset it"),
        ((None, "pm"), Level.FAIL, "the kernel knows no way to reset it"),
        (("",), Level.FAIL, "write default to reset_method of"),
    ],
)
def test_the_reset_of_a_card_is_shown_and_inspect_agrees(
    tmp_path: Path, methods: tuple[str | None, ...], level: Level, words: str
) -> None:
    root = make(tmp_path, *methods)
    (observation,) = check(root).observations
    assert observation.level is level
    assert observation.text.startswith(GPU)
    assert words in observation.text
    state = look.read(root)
    assert (state.device(GPU) is None) is (level is Level.FAIL)
    if level is Level.FAIL:
        reason = observation.text.removeprefix(f"{GPU}: ")
        assert reason in look.reasons(state, GPU)


def test_a_line_that_is_not_valid_is_left_to_its_own_check(
    tmp_path: Path,
) -> None:
    assert check(make(tmp_path, "flr"), {"use": "x"}).level is Level.OK


def test_a_card_of_the_hosts_driver_is_not_reset(tmp_path: Path) -> None:
    assert check(make(tmp_path, None, driver="nvidia")).observations == ()


@pytest.mark.parametrize(
    ("words", "level"), [({}, Level.NOTE), ({"scrub": "reset"}, Level.OK)]
)
def test_a_card_that_its_driver_has_back_is_noted(
    tmp_path: Path, words: dict[str, str], level: Level
) -> None:
    """The scrub resets no function below a driver of the host."""
    line = {"address": GPU, "use": "passthrough"} | words
    result = check(make(tmp_path, "flr", driver="nouveau"), line)
    (observation,) = result.observations
    assert observation.level is level
    has_driver = "the host's driver nouveau" in observation.text
    assert has_driver is (not words)


def test_resets_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    root = make(tmp_path, None)
    for name in ("reset", "reset_method"):
        (root / "sys/bus/pci/devices" / OTHER / name).unlink()
    (observation,) = check(root).observations
    assert observation.level is Level.UNKNOWN
    assert look.read(root).device(GPU) is not None


def test_a_vf_without_reset_is_a_failure(tmp_path: Path) -> None:
    vfs = {
        "total": 4,
        "count": 2,
        "offset": 1,
        "driver": "vfio-pci",
        "first_group": 10,
    }
    root = make(tmp_path, "flr", driver="ice", vfs=vfs)
    for name in ("reset", "reset_method"):
        (root / "sys/bus/pci/devices/0000:01:00.1" / name).unlink()
    (observation,) = check(root).observations
    assert observation.level is Level.FAIL
    assert observation.text.startswith("0000:01:00.1: it can't be reset")


def test_a_state_that_is_right_needs_no_remedy(tmp_path: Path) -> None:
    results = [check(make(tmp_path, "flr"))]
    text = check_report.as_text(results)
    assert text.startswith(f"OK      pci.reset: {GPU} is reset")
    assert "remedy" not in text and "why" not in text
    (finding,) = check_report.as_dict(results)["checks"][0]["findings"]
    assert (finding["verdict"], finding["remedy"]) == ("ok", "")
    assert check_report.exit_status(results) == check_report.SUCCESS
