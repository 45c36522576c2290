# SPDX-License-Identifier: Apache-2.0
"""Command ``placement-sync`` with a real Placement and hosts of real files."""

import io
import json
import pathlib
import sys
import uuid

import pytest

from nova_accel import model
from nova_accel.cli import commands as inspect_cli
from nova_accel.config import library_version
from nova_accel.host.state import claims_file
from nova_accel.model import names, providers
from placement_sync.cli import common_options, main, progress
from tests.functional.sync.commands import programs
from tests.functional.sync.support import odd
from tests.functional.sync.support.sites import (
    CARD,
    HOST,
    NODE,
    OTHER,
    ROOT,
    SECRET,
    Site,
)
from tests.hosts import build, look


def test_one_pass_updates_placement_and_the_next_writes_nothing(
    site: Site,
) -> None:
    first = site.once(*NODE)
    assert first["host"] == {"name": HOST, "uuid": ROOT}
    assert first["writes"] == site.writes() > 0
    assert first["problems"] == []
    assert site.names() == {
        HOST,
        names.provider_name(HOST, CARD),
        names.provider_name(HOST, OTHER),
    }
    assert site.read(CARD, "inventories")["VGPU"]["total"] > 0
    second = site.once(*NODE)
    assert second["calls"] == [] and second["writes"] == 0
    assert site.writes() == 0


def test_a_dry_run_prints_the_calls_and_writes_nothing(site: Site) -> None:
    text = site.run("run", "--dry-run", *NODE)
    lines = text.splitlines()
    assert any(line.startswith("create provider ") for line in lines)
    assert "would be made" in lines[-1]
    assert site.writes() == 0
    assert not site.state.exists()
    done = site.run("run", "--once", *NODE)
    assert done.splitlines()[:-1] == lines[:-1]


def test_json_and_text_list_the_same_calls(site: Site) -> None:
    text = site.run("run", "--dry-run", *NODE).splitlines()
    report = json.loads(site.run("run", "--dry-run", "-f", "json", *NODE))
    assert report["calls"] == text[:-1]
    assert report["dry_run"] is True and report["writes"] == 0
    assert report.keys() == {
        "host",
        "dry_run",
        "calls",
        "reads",
        "writes",
        "attempts",
        "seconds",
        "problems",
        "host_problems",
    }


@pytest.mark.parametrize("mode", ["--dry-run", "--once"])
def test_problems_of_the_configuration_are_printed(
    site: Site, mode: str
) -> None:
    spec = '{"address": "0000:99:00.0"}'
    text = site.conf.read_text().replace(
        "[nova_accel]\n", f"[nova_accel]\ndevice_spec = {spec}\n"
    )
    site.conf.write_text(text)
    lines = site.run("run", mode, *NODE).splitlines()
    problems = [line for line in lines if line.startswith("problem: ")]
    assert problems == [
        f"problem: [nova_accel] device_spec = {spec}: matches nothing on"
        " this host; check its address and ids"
    ]
    assert "calls" in lines[-1]


def test_a_captured_host_needs_no_files_of_this_machine(
    site: Site, tmp_path: pathlib.Path
) -> None:
    archive = tmp_path / "host.tar.gz"
    assert not inspect_cli.main(
        ["capture", "--root", str(site.root), "-o", str(archive)]
    )
    site.capsys.readouterr()
    command = ["run", "--dry-run", "--root", str(archive), *NODE]
    command += ["--endpoint", site.placement.url]
    assert main.main(command) == 0
    from_archive = site.capsys.readouterr().out.splitlines()[:-1]
    assert (
        from_archive == site.run("run", "--dry-run", *NODE).splitlines()[:-1]
    )
    assert site.writes() == 0


def test_a_captured_host_needs_a_name(site: Site) -> None:
    command = ["run", "--dry-run", "--root", str(site.root)]
    assert main.main([*command, "--endpoint", site.placement.url]) == 2
    assert "--host" in site.capsys.readouterr().err
    assert main.main(command) == 2  # Credentials are missing, too.
    assert "--os-cloud" in site.capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--host-uuid", ROOT], ["--host", HOST, "--host-uuid", ROOT]]
)
def test_the_node_is_found_by_its_uuid(site: Site, options: list[str]) -> None:
    assert site.once(*options)["host"] == {"name": HOST, "uuid": ROOT}


def test_the_node_is_found_by_the_file_compute_id(site: Site) -> None:
    site.conf.with_name("compute_id").write_text(f"{ROOT}\n")
    assert site.once()["host"] == {"name": HOST, "uuid": ROOT}


def test_the_node_is_found_in_novas_state_path(
    site: Site, tmp_path: pathlib.Path
) -> None:
    state_path = tmp_path / "nova"
    state_path.mkdir()
    (state_path / "compute_id").write_text(f"{ROOT}\n")
    with site.conf.open("a") as file:
        file.write(f"\n[DEFAULT]\nstate_path = {state_path}\n")
    assert site.once()["host"] == {"name": HOST, "uuid": ROOT}


def test_the_node_is_found_by_the_claims_file(site: Site) -> None:
    root = providers.ProviderRoot(name=HOST, uuid=ROOT)
    site.conf.with_name("compute_id").write_text(str(uuid.UUID(int=7)))
    claims_file.ClaimsFile(str(site.state)).write(root, (), ())
    assert site.once()["host"] == {"name": HOST, "uuid": ROOT}


def test_create_root_creates_a_missing_node(
    site: Site,
) -> None:
    words = site.fail("run", "--once", "--host", "bare1")
    assert "--host" in words and "--create-root" in words
    planned = site.run("run", "--dry-run", "--host", "bare1", "--create-root")
    assert planned.startswith("create provider bare1 (")
    assert site.writes() == 0
    made = site.once("--host", "bare1", "--create-root")
    assert made["host"]["uuid"] == str(uuid.uuid5(uuid.NAMESPACE_DNS, "bare1"))
    assert names.provider_name("bare1", CARD) in site.names()
    assert site.once("--host", "bare1")["writes"] == 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("[nova_accel]\ndevice_spec = {\n", "device_spec"),
        ("[nova_accel]\ndrivers = none_such\n", "none_such"),
        ("[nova_accel]\ndrivers = none_such\n", "{conf} [nova_accel] dr"),
        ("[nova_accel]\nroot = /proc/x\n", "{conf} [nova_accel] root = "),
        ("no section\n", "nova.conf"),
        (f"[placement]\npassword = {SECRET}\n", "auth_type"),
        (f"[placement]\nauth_type = nay\npassword = {SECRET}\n", "auth_type"),
    ],
)
def test_an_invalid_setting_is_one_line(
    site: Site, text: str, message: str
) -> None:
    site.conf.write_text(text)
    assert message.format(conf=site.conf) in site.fail("run", "--once", *NODE)


def test_a_malformed_claims_file_stops_the_pass(site: Site) -> None:
    site.state.mkdir()
    (site.state / "book.json").write_text("{")
    assert "book.json" in site.fail("run", "--once", *NODE)
    assert site.writes() == 0


def test_claimed_partitions_are_not_reserved(site: Site) -> None:
    """The second card has three vGPUs that were made without Nova."""
    site.once(*NODE)
    taken = site.read(OTHER, "inventories")["VGPU"]["reserved"]
    assert taken == 3
    device = look.device(look.read(site.root), OTHER)
    own = names.provider_uuid(ROOT, OTHER)
    partition = device.partitions[0]
    claim = model.Claim(
        consumer=str(uuid.uuid4()),
        provider=own,
        device=OTHER,
        profile=partition.profile,
        slot="slot-0",
        parent=partition.parent,
        handle=partition.handle,
        technology=device.technology,
    )
    file = claims_file.ClaimsFile(str(site.state))
    root = providers.ProviderRoot(name=HOST, uuid=ROOT)
    file.write(root, (claim,), ())
    site.once()
    assert site.read(OTHER, "inventories")["VGPU"]["reserved"] == 2
    other = providers.ProviderRoot(name="other", uuid=str(uuid.uuid4()))
    # A claims file of another node is ignored.
    file.write(other, (claim,), ())
    site.once(*NODE)
    assert site.read(OTHER, "inventories")["VGPU"]["reserved"] == 3


def test_mdevs_of_the_library_are_not_reserved_without_claims(
    site: Site,
) -> None:
    own = names.provider_uuid(ROOT, CARD)
    mdev = names.mdev_uuid(own, "slot-0")
    place = site.root / "sys/class/mdev_bus" / CARD / mdev
    place.mkdir()
    kind = next((place.parent / "mdev_supported_types").iterdir())
    (place / "mdev_type").symlink_to(kind)
    (site.root / "sys/bus/mdev/devices" / mdev).symlink_to(place)
    site.once(*NODE)
    assert site.read(CARD, "inventories")["VGPU"]["reserved"] == 0
    assert site.read(OTHER, "inventories")["VGPU"]["reserved"] == 3


def test_the_option_version(site: Site) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    output = site.capsys.readouterr().out
    assert output == f"placement-sync {library_version.read()}\n"


def test_an_unreadable_host_is_not_taken_for_empty(
    site: Site,
) -> None:
    site.once(*NODE)
    build.break_path(site.root, "bus/pci/devices", {"fault": "circle"})
    site.execute("run", "--once", *NODE)
    assert names.provider_name(HOST, CARD) in site.names()


def test_the_option_os_cloud(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clouds = tmp_path / "clouds.yaml"
    url = site.placement.url
    entry = {
        "auth_type": "admin_token",
        "auth": {"endpoint": url, "token": "admin"},
        "placement_endpoint_override": url,
    }
    clouds.write_text(json.dumps({"clouds": {"here": entry}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    site.write_conf("http://127.0.0.1:9")
    assert site.once(*NODE, "--os-cloud", "here")["writes"] > 0
    assert "elsewhere" in site.fail("run", "--once", "--os-cloud", "elsewhere")


def test_the_password_is_not_printed(site: Site) -> None:
    site.conf.write_text(
        f"[nova_accel]\nroot = {site.root}\nstate_dir = {site.state}\n"
        "[placement]\nauth_type = password\nusername = nova\n"
        f"password = {SECRET}\nproject_name = service\n"
        f"auth_url = http://nova:{SECRET}@127.0.0.1:9/v3\n"
    )
    site.fail(
        "run", "--once", *NODE, status=1
    )  # Checks the output for the password.


MALFORMED = {
    "infinite": b'{"resource_providers": [{"uuid": "%s", "name": "%s",'
    b' "generation": 1e999}]}' % (ROOT.encode(), HOST.encode()),
    "constant": b'{"resource_providers": Infinity}',
    "brackets": b"[" * 100_000,
    "nested": b'{"resource_providers": [{"uuid": %s}]}'
    % (b"[" * 400 + b"]" * 400),
    "surrogate": b'{"resource_providers": [{"uuid": "\\ud800"}]}',
    "list": b"[]",
    "text": b'"resource_providers"',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_one_line(site: Site, body: bytes) -> None:
    with odd.answering(odd.http("200 OK", body)) as url:
        site.write_conf(url)
        assert "GET /resource_providers" in site.fail(
            "run", "--once", *NODE, status=1
        )


class Terminal(io.StringIO):
    """Standard error of a user at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "words",
    [["audit"], ["drain", CARD, "--reason", "r", "--wait", "0"]],
    ids=["audit", "drain"],
)
def test_a_line_says_that_placement_is_slow(
    site: Site, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "DELAY_S", 0.1)
    answers = progress.SlowAnswers()
    monkeypatch.setattr(common_options, "_SLOW_ANSWERS", answers)
    with odd.answering(odd.http("200 OK", b"[]"), pause_s=0.01) as url:
        site.write_conf(url)
        command = [*words, *NODE, "--config-file", str(site.conf)]
        assert programs.main(command) == 1
    first = stderr.getvalue().splitlines()[0]
    assert first.startswith("nova-accel: waiting for Placement: GET /")
