# SPDX-License-Identifier: Apache-2.0
"""``nova-accel driver`` plans, and refuses before anything is changed."""

import json
import pathlib

import pytest

from nova_accel.cli import commands
from nova_accel.doctor.ansible import manifests
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes, test_doctor_command
from tests.unit.nova_accel.doctor.ansible import test_device_use

Output = pytest.CaptureFixture[str]
UNBOUND: prepared.Change = {prepared.at(prepared.L40S, "driver"): None}
VARIABLES = {"nvidia_vgpu_host_packages": ["nvidia-vgpu-ubuntu-580"]}


def run(*arguments: str) -> int:
    return commands.main(["driver", *arguments])


@pytest.fixture
def config(tmp_path: pathlib.Path) -> str:
    """Return a nova.conf whose host has a GPU without a driver."""
    root = test_doctor_command.save(UNBOUND, tmp_path / "host.tar.gz")
    (tmp_path / "state").mkdir()
    path = tmp_path / "nova.conf"
    path.write_text(
        f"[nova_accel]\nroot = {root}\nstate_dir = {tmp_path}/state\n"
    )
    return str(path)


@pytest.fixture
def variables(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "variables.json"
    path.write_text(json.dumps(VARIABLES))
    return str(path)


def test_the_plan_is_printed(tmp_path: pathlib.Path, capsys: Output) -> None:
    change = UNBOUND | changes.CASES["iommu.off"].change
    root = test_doctor_command.save(change, tmp_path / "a.tar.gz")
    assert run("plan", "--root", root, "-f", "json") == 0
    by_role = {row["Role"]: row for row in json.loads(capsys.readouterr().out)}
    assert "iommu.off" in by_role["iommu"]["Reasons"]
    row = by_role["nvidia_vgpu_host"]
    assert f"no driver for {prepared.L40S}" in row["Reasons"]
    assert "nvidia_vgpu_host_sha256" in row["Variables"]
    assert not row["Installed"]


def test_a_technology_selects_its_roles(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = test_doctor_command.save(UNBOUND, tmp_path / "a.tar.gz")
    assert run("plan", "--root", root, "--technology", "qat") == 0
    assert "nvidia" not in capsys.readouterr().out


def test_a_held_device_ends_an_installation(
    config: str, variables: str, tmp_path: pathlib.Path, capsys: Output
) -> None:
    test_device_use.publish(tmp_path / "state", prepared.T4)
    arguments = ["--config-file", config, "--vars", variables]
    assert run("install", *arguments) == 2
    assert test_device_use.SERVER in capsys.readouterr().err
    assert test_device_use.drained(tmp_path / "state") == set()


def test_a_reboot_is_refused_while_any_device_is_held(
    config: str, variables: str, tmp_path: pathlib.Path, capsys: Output
) -> None:
    test_device_use.publish(tmp_path / "state", prepared.QAT)
    arguments = ["--config-file", config, "--vars", variables, "--reboot"]
    assert run("install", *arguments) == 2
    assert f"{prepared.QAT}: server" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_another_host_is_never_changed(
    config: str, variables: str, capsys: Output, options: list[str]
) -> None:
    arguments = ["--config-file", config, "--vars", variables, *options]
    assert run("install", *arguments) == 2
    assert "Ansible changes this host only" in capsys.readouterr().err


@pytest.fixture
def drivers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """Return a directory of manifests."""
    place = tmp_path / "drivers"
    place.mkdir()
    monkeypatch.setattr(manifests, "DIRECTORY", str(place))
    return place


def test_the_status_lists_changes(
    drivers: pathlib.Path, capsys: Output
) -> None:
    manifest = {
        "format": 1,
        "role": "blacklist",
        "boot": manifests.read_boot(),
        "files": {"/etc/modprobe.d/a.conf": {"sha256": "0"}},
        "pending": ["initramfs"],
    }
    (drivers / "blacklist.json").write_text(json.dumps(manifest))
    assert run("status", "-f", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["Files"] == ["/etc/modprobe.d/a.conf"]
    assert (row["Interrupted"], row["Reboot"]) == (True, True)


def test_nova_accel_stays_while_a_device_is_held(
    config: str, drivers: pathlib.Path, tmp_path: pathlib.Path, capsys: Output
) -> None:
    test_device_use.publish(tmp_path / "state", prepared.QAT)
    manifest = {"format": 1, "role": "nova_accel"}
    (drivers / "nova_accel.json").write_text(json.dumps(manifest))
    assert run("remove", "--config-file", config) == 2
    assert f"{prepared.QAT}: server" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(
    drivers: pathlib.Path, capsys: Output
) -> None:
    (drivers / "qat.json").write_text("{")
    assert run("remove") == 2
    assert "qat.json" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan"])
def test_a_time_that_is_none_is_refused(seconds: str, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        run("install", "--drain-wait", seconds)
    assert "is no number of seconds" in capsys.readouterr().err
