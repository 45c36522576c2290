# SPDX-License-Identifier: Apache-2.0
"""Reports of recorded hosts equal the golden ones.

The reports are in ``tests/hosts/recorded``. To renew them after an intended
change::

    NOVA_ACCEL_UPDATE_GOLDEN=1 pytest \
        tests/unit/nova_accel/discovery/hosts/test_recorded_hosts.py
    git diff tests/hosts/recorded
"""

import dataclasses

import pytest

from nova_accel import model
from nova_accel.cli import host_source
from nova_accel.config import policy
from nova_accel.discovery import (
    capture,
    plugin,
    scan,
    unoffered_devices,
)
from nova_accel.host.sysfs import host_reader
from tests.hosts import recorded
from tests.support import golden
from tests.unit.nova_accel.cli import test_inspect


@dataclasses.dataclass(frozen=True)
class Captured:
    """A recorded host, and the archive that ``capture`` makes of it."""

    name: str
    state: model.HostState
    archive: str


@pytest.fixture(scope="module", params=recorded.NAMES)
def captured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Captured:
    host = host_reader.HostReader(
        source=recorded.load(request.param),
        gpus=recorded.load_gpus(request.param),
    )
    state = scan.read(host, plugin.load(), policy.DeviceRules())
    unoffered_devices.find_unoffered(
        host, state, plugin.load(), policy.DeviceRules()
    )
    place = tmp_path_factory.mktemp("captured")
    archive = str(place / "host.tar.gz")
    capture.save(host, archive, capture.describe_host(str(place)))
    return Captured(request.param, state, archive)


def test_a_capture_of_a_recorded_host_has_its_devices(
    captured: Captured,
) -> None:
    problems = captured.state.problems
    assert not [p for p in problems if p.where.startswith("driver ")]
    again, _ = host_source.open_host(captured.archive)
    state = scan.read(again, plugin.load(), policy.DeviceRules())
    assert state == captured.state


@pytest.mark.parametrize("kind", ["json", "txt"])
def test_the_report_of_a_recorded_host_equals_the_golden_file(
    captured: Captured, capsys: test_inspect.Output, kind: str
) -> None:
    """The report is of a capture of the recorded host."""
    form = ["-f", "json"] if kind == "json" else []
    text = test_inspect.run(
        capsys, "inspect", "--root", captured.archive, "--host", "node1", *form
    )
    golden.check(recorded.HERE / f"{captured.name}.{kind}", text)


def test_each_golden_file_has_a_recorded_host() -> None:
    stems = {p.stem for p in recorded.HERE.glob("*.txt")}
    assert stems == set(recorded.NAMES)
    assert stems
