# SPDX-License-Identifier: Apache-2.0
"""The collector never fails, and needs little of a ramdisk."""

import pathlib
import subprocess
import sys
from typing import Any

import pytest

from nova_accel.host.sysfs import fs
from tests.hosts import look
from virt_hooks.ironic import (
    collector,
    inspection_data,
    node_reader,
    node_report,
)

# None of these is in a ramdisk.
ABSENT = (
    *("nova", "libvirt", "pyudev", "openstack", "keystoneauth1", "lxml"),
    *("cliff", "oslo_privsep", "pynvml", "ironic"),
)
IMPORT = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None
from virt_hooks.ironic import collector
data = {{}}
collector.collect(data, None)
print(data["accelerators"]["version"])
"""


def test_a_report_is_added_to_the_data(tmp_path: pathlib.Path) -> None:
    source = fs.DiskSource(look.make("t4-mdev", tmp_path))
    report = collector.read_report(source)
    assert [d.model for d in report.devices] == ["T4", "T4"]


def test_a_ramdisk_needs_neither_nova_nor_libvirt() -> None:
    result = subprocess.run(  # noqa: S603
        [sys.executable, "-c", IMPORT],
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout == "1\n"


def test_a_failure_is_part_of_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(host: object) -> node_report.NodeReport:
        raise RuntimeError("out of order")

    monkeypatch.setattr(node_reader, "read_report", fail)
    data: dict[str, Any] = {}
    collector.collect(data, failures=None)
    report = inspection_data.parse(data[collector.KEY])
    assert "out of order" in report.error
    assert not report.is_complete
