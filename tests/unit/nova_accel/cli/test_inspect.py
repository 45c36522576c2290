# SPDX-License-Identifier: Apache-2.0
"""``nova-accel inspect`` prints the golden reports.

The reports are in ``tests/golden``. To renew them after an intended
change::

    NOVA_ACCEL_UPDATE_GOLDEN=1 pytest tests/unit/nova_accel/cli/test_inspect.py
    git diff tests/golden
"""

import json
import pathlib
import subprocess
import sys
import uuid

import pytest

from nova_accel import model
from nova_accel.cli import commands
from nova_accel.host.state import claims_file
from nova_accel.model import names, providers
from tests.hosts import look
from tests.support import golden

NODE = providers.ProviderRoot(name="node7", uuid=str(uuid.UUID(int=0x7777)))
Output = pytest.CaptureFixture[str]


def run(capsys: Output, *arguments: str) -> str:
    assert commands.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize("name", look.NAMES)
@pytest.mark.parametrize("kind", ["json", "txt"])
def test_the_report_of_a_host_equals_the_golden_file(
    tmp_path: pathlib.Path, capsys: Output, name: str, kind: str
) -> None:
    root = look.make(name, tmp_path)
    form = ["-f", "json"] if kind == "json" else []
    text = run(
        capsys, "inspect", "--root", str(root), "--host", "node1", *form
    )
    golden.check(golden.PLACE / f"{name}.{kind}", text)


def test_each_golden_file_has_a_host() -> None:
    stems = {path.stem for path in golden.PLACE.glob("*.*")}
    assert stems == set(look.NAMES)


def test_this_machine_can_be_inspected(capsys: Output) -> None:
    assert run(capsys, "inspect")


def test_inspect_applies_the_policy(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    conf = tmp_path / "nova.conf"
    conf.write_text(
        "[DEFAULT]\nhost = x\n[nova_accel]\n"
        'device_spec = {"address": "0000:3b:*", "use": "off"}\n'
        'device_spec = {"max_slots": 2}\n'
        f"root = {root}\n"
    )
    output = json.loads(
        run(capsys, "inspect", "-f", "json", "--config-file", str(conf))
    )
    assert [d["address"] for d in output["devices"]] == ["0000:af:00.0"]
    (provider,) = output["providers"]
    assert provider["inventories"]["VGPU"]["total"] == 2


@pytest.fixture
def compute(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the nova.conf of a T4 host whose nova-compute has run."""
    root = look.make("t4-mdev", tmp_path / "host")
    path, state_dir = tmp_path / "nova.conf", tmp_path / "state"
    path.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {state_dir}\n")
    mdev = "0f0e6f0a-0000-4000-8000-000000000000"
    claim = model.Claim(
        consumer=str(uuid.UUID(int=7)),
        provider=names.provider_uuid(NODE.uuid, "0000:af:00.0"),
        device="0000:af:00.0",
        profile="T4-4Q",
        slot=mdev,
        parent="0000:af:00.0",
        handle=mdev,
        technology="mdev",
        state=model.ClaimState.MADE,
    )
    claims_file.ClaimsFile(str(state_dir)).write(NODE, [claim], [])
    return path


def test_inspect_prints_the_uuids_of_placement_and_what_is_used(
    compute: pathlib.Path, capsys: Output
) -> None:
    arguments = ["inspect", "--config-file", str(compute)]
    lines = run(capsys, *arguments).splitlines()
    card = names.provider_uuid(NODE.uuid, "0000:af:00.0")
    place = lines.index(f"  node7_accel_0000_af_00_0  {card}")
    assert lines[place + 1 : place + 3] == [
        "    CUSTOM_GPU_MEMORY_MB: total 16384, reserved 8192, used 4096",
        "    VGPU: total 4, reserved 2, used 1",
    ]
    output = json.loads(run(capsys, *arguments, "-f", "json"))
    (provider,) = (p for p in output["providers"] if "used" in p)
    assert provider["uuid"] == card
    assert provider["used"] == {"CUSTOM_GPU_MEMORY_MB": 4096, "VGPU": 1}


@pytest.mark.parametrize("host", ["node8", None])
def test_inspect_prints_no_uuid_that_placement_does_not_have(
    compute: pathlib.Path, capsys: Output, host: str | None
) -> None:
    arguments = ["inspect", "--config-file", str(compute)]
    if host:
        arguments += ["--host", host]
    else:
        (compute.parent / "state/book.json").unlink()
    lines = run(capsys, *arguments).splitlines()
    assert [line for line in lines if line.endswith("_accel_0000_af_00_0")]
    assert "used" not in "\n".join(lines)


def test_inspect_reads_the_nova_conf_of_this_machine(
    compute: pathlib.Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nova_accel.discovery.nova_conf.CONFIG_FILES", (str(compute),)
    )
    assert "used 4096" in run(capsys, "inspect")
    root = str(compute.parent / "host")
    assert "used" not in run(capsys, "inspect", "--root", root)


@pytest.mark.parametrize("is_archive", [False, True])
def test_inspect_reads_the_nova_conf_of_another_machine(
    tmp_path: pathlib.Path, capsys: Output, is_archive: bool
) -> None:
    """It is read as nova-compute reads it, files of directories last."""
    root = look.make("t4-mdev", tmp_path / "host")
    for name, text in (
        ("nova.conf", 'device_spec = {"address": "0000:3b:*", "use": "off"}'),
        ("nova.conf.d/10-more.conf", 'device_spec = {"max_slots": 2}'),
        ("nova.conf.d/10-more.conf.bak", 'device_spec = {"use": "off"}'),
    ):
        path = root / "etc/nova" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[nova_accel]\n{text}\n")
    place = str(root)
    if is_archive:
        place = str(tmp_path / "host.tar.gz")
        run(capsys, "capture", "--root", str(root), "-o", place)
    output = json.loads(run(capsys, "inspect", "-f", "json", "--root", place))
    assert [d["address"] for d in output["devices"]] == ["0000:af:00.0"]
    (provider,) = output["providers"]
    assert provider["inventories"]["VGPU"]["total"] == 2
    other = tmp_path / "other.conf"
    other.write_text("[nova_accel]\n")
    output = json.loads(
        run(
            capsys,
            *("inspect", "-f", "json", "--root", place),
            *("--config-file", str(other)),
        )
    )
    assert len(output["devices"]) == 2


@pytest.mark.parametrize(
    "text", ['device_spec = {"use": "vgpus"}', "vgpu_sizes = odd"]
)
def test_an_invalid_nova_conf_of_another_machine_is_named(
    tmp_path: pathlib.Path, capsys: Output, text: str
) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    path = root / "etc/nova/nova-compute.conf.d/1.conf"
    path.parent.mkdir(parents=True)
    path.write_text(f"[nova_accel]\n{text}\n")
    name, _, value = text.partition(" = ")
    error = refused(capsys, "inspect", "--root", str(root))
    assert (
        f"/etc/nova/nova-compute.conf.d/1.conf [nova_accel] {name} = {value}:"
    ) in error


@pytest.mark.parametrize("is_own", [True, False])
def test_a_device_of_a_server_stays_offered_without_a_reset(
    tmp_path: pathlib.Path, capsys: Output, is_own: bool
) -> None:
    """A note in state_dir says that a server has it."""
    root = look.make("passthrough", tmp_path / "host")
    state_dir = root / "var/lib/nova/accel"
    conf = tmp_path / "nova.conf"
    conf.write_text(f"[nova_accel]\nroot = {root}\nstate_dir = {state_dir}\n")
    options = ["--config-file", str(conf)] if is_own else ["--root", str(root)]
    command = ["inspect", "-f", "json", *options]
    address = json.loads(run(capsys, *command))["devices"][0]["address"]
    for name in ("reset", "reset_method"):
        for path in root.glob(f"sys/devices/**/{address[:-1]}?/{name}"):
            path.unlink()
    output = json.loads(run(capsys, *command))
    assert address not in [d["address"] for d in output["devices"]]
    notes = state_dir / "unreleased"
    notes.mkdir(parents=True)
    (notes / f"{address.replace(':', '%3A')}.json").write_text("{}")
    output = json.loads(run(capsys, *command))
    assert address in [d["address"] for d in output["devices"]]
    assert commands.main(["doctor", "--root", str(root)]) in (0, 1, 2)
    assert f"{address}: is not passed" not in capsys.readouterr().out


def test_inspect_lists_a_missing_state_dir_of_a_nova_conf(
    compute: pathlib.Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state_dir, root = compute.parent / "state", str(compute.parent / "host")
    line = (
        f"{compute} [nova_accel] state_dir = {state_dir}: is no directory, so"
        " devices that are set aside or drained are not known"
    )
    arguments = ["inspect", "--config-file", str(compute)]
    assert line not in run(capsys, *arguments)
    state_dir.rename(compute.parent / "renamed")
    assert line in run(capsys, *arguments)
    assert "is no directory" not in run(capsys, "inspect", "--root", root)
    monkeypatch.setattr("nova_accel.discovery.nova_conf.CONFIG_FILES", ())
    assert "is no directory" not in run(capsys, "inspect")


def test_a_capture_without_output_has_a_default_name(
    tmp_path: pathlib.Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(capsys, "capture")
    (archive,) = tmp_path.glob("nova-accel-*.tar.gz")
    assert run(capsys, "inspect", "--root", str(archive))


def refused(capsys: Output, *arguments: str) -> str:
    assert commands.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nova-accel: ")
    assert captured.err.count("\n") == 1
    return captured.err


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
        ("drivers = nosuch", "{conf} [nova_accel] drivers = nosuch: "),
        ("root = host", "{conf} [nova_accel] root = host: write an absolute"),
        ("root = /proc/x", "{conf} [nova_accel] root = /proc/x: does not"),
        ("this is no line", "nova.conf"),
    ],
)
def test_a_bad_nova_conf_is_refused(
    tmp_path: pathlib.Path, capsys: Output, line: str, word: str
) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text(f"[nova_accel]\n{line}\n")
    error = refused(capsys, "inspect", "--config-file", str(conf))
    assert word.format(conf=conf) in error


def test_the_path_of_a_malformed_nova_conf_is_reported_once(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    path = tmp_path / "nova.conf"
    path.write_text("[DEFAULT]\nno assignment\n")
    error = refused(capsys, "inspect", "--config-file", str(path))
    assert error.startswith(
        f"nova-accel: configuration file = {path}: line 2,"
    )
    assert error.count(str(path)) == 1


def test_an_unreadable_nova_conf_is_refused(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    good, odd = tmp_path / "good.conf", tmp_path / "odd.conf"
    good.write_text("[DEFAULT]\n")
    odd.write_bytes(b"[DEFAULT]\n# Caf\xe9\n")
    files = ["--config-file", str(good), "--config-file", str(odd)]
    error = refused(capsys, "inspect", *files)
    assert error.startswith(f"nova-accel: configuration file = {odd}: is not")
    error = refused(capsys, "inspect", "--config-file", str(tmp_path))
    assert error == (
        f"nova-accel: configuration file = {tmp_path}: can't be read"
        " (Is a directory)\n"
    )


def test_an_existing_archive_is_kept(
    tmp_path: pathlib.Path, capsys: Output
) -> None:
    archive = tmp_path / "kept"
    archive.write_text("kept")
    assert "exists" in refused(capsys, "capture", "-o", str(archive))
    assert archive.read_text() == "kept"


@pytest.mark.slow
def test_a_closed_stdout_causes_no_traceback(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    command = [sys.executable, "-m", "nova_accel.cli.commands", "inspect"]
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


@pytest.mark.slow
def test_a_full_disk_causes_no_traceback(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    command = [sys.executable, "-m", "nova_accel.cli.commands", "inspect"]
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


def test_the_version_is_printed(capsys: Output) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("nova-accel ")
