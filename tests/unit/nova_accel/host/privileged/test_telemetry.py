# SPDX-License-Identifier: Apache-2.0
"""The telemetry of a QAT device is read below its own directory only."""

import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.execute.technologies import qat_telemetry

pytestmark = pytest.mark.usefixtures("own_rights")
QAT = "0000:6b:00.0"


def write(root: Path, control: str, data: str | None) -> None:
    place = root / f"sys/kernel/debug/qat_4xxx_{QAT}/telemetry"
    place.mkdir(parents=True)
    (place / "control").write_text(control)
    if data is not None:
        (place / "device_data").write_text(data)


def test_counters_are_read_whole(tmp_path: Path) -> None:
    data = "".join(f"util_cpr{n:<27} {n % 100:<60}\n" for n in range(90))
    write(tmp_path, "2\n", data)
    number, state, text = qat_telemetry.read_telemetry(str(tmp_path), QAT)
    assert (number, state) == (0, "2")
    assert text == data.strip()


def test_counters_of_disabled_telemetry_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "0\n", None)
    assert qat_telemetry.read_telemetry(str(tmp_path), QAT) == (0, "0", "")


def test_another_device_has_no_telemetry(tmp_path: Path) -> None:
    absent = (errno.ENOENT, "", "")
    assert qat_telemetry.read_telemetry(str(tmp_path), QAT) == absent
    write(tmp_path, "1\n", "util_cpr0 1\n")
    other = "0000:70:00.0"
    assert qat_telemetry.read_telemetry(str(tmp_path), other) == absent


@given(function=st.text("./-:0aZ\n\0*[", max_size=14))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_only_addresses_are_accepted(tmp_path: Path, function: str) -> None:
    with pytest.raises(errors.MalformedError):
        qat_telemetry.read_telemetry(str(tmp_path), function)
