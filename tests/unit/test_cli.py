# SPDX-License-Identifier: Apache-2.0
"""The command, by what it prints.

The reports of the described hosts are in ``tests/golden``. After a change
that is meant to change them, write them anew and look at the difference::

    NOVA_ACCEL_UPDATE_GOLDEN=1 pytest tests/unit/test_cli.py
    git diff tests/golden
"""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from nova_accel import cli, report
from tests.hosts import look

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
UPDATE = "NOVA_ACCEL_UPDATE_GOLDEN"
Output = pytest.CaptureFixture[str]


def run(capsys: Output, *arguments: str) -> str:
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def check_golden(path: pathlib.Path, text: str) -> None:
    if os.environ.get(UPDATE):
        path.write_text(text)
        pytest.skip(f"wrote {path.name}")
    assert path.is_file(), f"no such golden file; write it with {UPDATE}=1"
    assert text == path.read_text()


@pytest.mark.parametrize("name", look.NAMES)
@pytest.mark.parametrize("kind", ["json", "txt"])
def test_the_report_of_a_host_is_its_golden_one(
    tmp_path: pathlib.Path, capsys: Output, name: str, kind: str
) -> None:
    root = look.make(name, tmp_path)
    form = ["--json"] if kind == "json" else []
    text = run(
        capsys, "inspect", "--root", str(root), "--host", "node1", *form
    )
    check_golden(GOLDEN / f"{name}.{kind}", text)


def test_each_golden_file_has_its_host() -> None:
    found = {path.stem for path in GOLDEN.iterdir()}
    assert found == set(look.NAMES)


@pytest.mark.parametrize("name", look.NAMES)
def test_the_json_has_the_keys_that_other_tools_read(
    tmp_path: pathlib.Path, capsys: Output, name: str
) -> None:
    root = look.make(name, tmp_path)
    found: dict[str, Any] = json.loads(
        run(capsys, "inspect", "--json", "--root", str(root))
    )
    assert found.keys() == {"devices", "providers", "problems"}
    for device in found["devices"]:
        optional = {"vendor_id", "product_id", "parent", "region"}
        assert device.keys() - optional - {"fault", "drain"} == {
            "address",
            "vendor",
            "model",
            "driver",
            "numa_node",
            "technology",
            "profiles",
            "partitions",
        }
        for profile in device["profiles"]:
            assert profile.keys() == {"name", "available"}
        for partition in device["partitions"]:
            assert partition.keys() == {"profile", "id", "in_use"}
    assert len(found["providers"]) == len(found["devices"])
    for provider in found["providers"]:
        assert provider.keys() == {"name", "parent", "inventories", "traits"}
        for inventory in provider["inventories"].values():
            assert inventory.keys() == {
                "total",
                "reserved",
                "min_unit",
                "max_unit",
                "step_size",
                "allocation_ratio",
            }
    for problem in found["problems"]:
        assert problem.keys() == {"where", "reason"}


def test_a_host_without_accelerators_gets_a_sentence(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = look.make("nothing", tmp_path)
    text = run(capsys, "inspect", "--root", str(root))
    assert text.startswith(report.NOTHING + "\n")
    # What an operator may have expected is named, with the reason.
    assert "0000:03:00.0  1a03:2000" in text
    assert "boot display" in text


def test_this_machine_can_be_inspected(capsys: Output) -> None:
    assert run(capsys, "inspect")


def test_a_policy_is_followed(tmp_path: pathlib.Path, capsys: Output) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    conf = tmp_path / "nova.conf"
    conf.write_text(
        "[DEFAULT]\nhost = x\n[nova_accel]\n"
        'device_spec = {"address": "0000:3b:*", "use": "off"}\n'
        'device_spec = {"max_slots": 2}\n'
        f"root = {root}\n"
    )
    found = json.loads(
        run(capsys, "inspect", "--json", "--config-file", str(conf))
    )
    assert [d["address"] for d in found["devices"]] == ["0000:af:00.0"]
    (provider,) = found["providers"]
    assert provider["inventories"]["VGPU"]["total"] == 2


@pytest.mark.parametrize("name", look.NAMES)
def test_a_captured_host_is_inspected_like_the_host(
    tmp_path: pathlib.Path, capsys: Output, name: str
) -> None:
    root = look.make(name, tmp_path / "host")
    archive = str(tmp_path / "host.tar.gz")
    told = run(capsys, "capture", "--root", str(root), "-o", archive)
    assert archive in told
    for form in ([], ["--json"]):
        same = ["--host", "node1", *form]
        assert run(capsys, "inspect", "--root", archive, *same) == run(
            capsys, "inspect", "--root", str(root), *same
        )


def test_a_capture_names_itself(
    tmp_path: pathlib.Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(capsys, "capture")
    (archive,) = tmp_path.glob("nova-accel-*.tar.gz")
    assert run(capsys, "inspect", "--root", str(archive))


def refused(capsys: Output, *arguments: str) -> str:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nova-accel: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_root_that_is_none_is_refused(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = str(tmp_path)
    assert "holds no sys/" in refused(capsys, "inspect", "--root", root)
    missing = str(tmp_path / "missing")
    assert "does not exist" in refused(capsys, "inspect", "--root", missing)
    # An unset variable in a shell must not become this machine.
    assert "is empty" in refused(capsys, "inspect", "--root", "")
    odd = tmp_path / "odd"
    odd.write_text("odd")
    for command in ("inspect", "capture"):
        line = refused(capsys, command, "--root", str(odd))
        assert "no archive" in line


def test_a_host_name_of_two_lines_is_refused(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = str(look.make("t4-mdev", tmp_path))
    line = refused(capsys, "inspect", "--root", root, "--host", "a\nb")
    assert "is not a host name" in line


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('device_spec = {"use": "gpu"}', "use must be one of"),
        ("device_spec = {", "one JSON object a line"),
        ("drivers = mdev, nosuch", "nosuch"),
        ("this is no line", "nova.conf"),
    ],
)
def test_a_bad_nova_conf_is_refused(
    tmp_path: pathlib.Path, capsys: Output, line: str, word: str
) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text(f"[nova_accel]\n{line}\n")
    assert word in refused(capsys, "inspect", "--config-file", str(conf))


def test_a_missing_nova_conf_is_refused(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    path = str(tmp_path / "nova.conf")
    assert path in refused(capsys, "inspect", "--config-file", path)


def test_an_existing_archive_is_kept(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    assert "exists" in refused(capsys, "capture", "-o", str(kept))
    assert kept.read_text() == "kept"


def test_a_reader_that_leaves_early_costs_no_trace(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    command = [sys.executable, "-m", "nova_accel.cli", "inspect"]
    with subprocess.Popen(  # noqa: S603
        [*command, "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_full_disk_costs_no_trace(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    command = [sys.executable, "-m", "nova_accel.cli", "inspect"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(  # noqa: S603
            [*command, "--root", str(root)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("nova-accel: can't write: ")
    assert done.stderr.count("\n") == 1


def test_the_version_is_told(capsys: Output) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("nova-accel ")
