# SPDX-License-Identifier: Apache-2.0
"""Reports of recorded hosts equal the golden ones.

The reports are in ``tests/hosts/recorded``. To renew them after an intended
change::

    NOVA_ACCEL_UPDATE_GOLDEN=1 pytest \
        tests/unit/nova_accel/discovery/hosts/test_recorded_hosts.py
    git diff tests/hosts/recorded
"""

import pathlib

import pytest

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


@pytest.mark.parametrize("name", recorded.NAMES)
@pytest.mark.parametrize("kind", ["json", "txt"])
def test_the_report_of_a_recorded_host_equals_the_golden_file(
    tmp_path: pathlib.Path, capsys: test_inspect.Output, name: str, kind: str
) -> None:
    """The report is of a capture of the recorded host."""
    host = host_reader.HostReader(
        source=recorded.load(name), gpus=recorded.load_gpus(name)
    )
    state = scan.read(host, plugin.load(), policy.DeviceRules())
    unoffered_devices.find_unoffered(
        host, state, plugin.load(), policy.DeviceRules()
    )
    assert not [p for p in state.problems if p.where.startswith("driver ")]
    archive = str(tmp_path / "host.tar.gz")
    capture.save(host, archive, capture.describe_host(str(tmp_path)))
    again, _ = host_source.open_host(archive)
    assert scan.read(again, plugin.load(), policy.DeviceRules()) == state
    form = ["-f", "json"] if kind == "json" else []
    text = test_inspect.run(
        capsys, "inspect", "--root", archive, "--host", "node1", *form
    )
    golden.check(recorded.HERE / f"{name}.{kind}", text)


def test_each_golden_file_has_a_recorded_host() -> None:
    stems = {p.stem for p in recorded.HERE.glob("*.txt")}
    assert stems == set(recorded.NAMES)
    assert stems
