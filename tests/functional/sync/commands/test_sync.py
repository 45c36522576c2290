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
from nova_accel.discovery import capture
from nova_accel.host.state import claims_file
from nova_accel.model import names, providers
from placement_sync.cli import main, progress
from tests.functional.sync.support import odd, servers
from tests.functional.sync.support.sites import (
    CARD,
    HOST,
    NODE,
    OTHER,
    ROOT,
    SECRET,
    Output,
    Site,
)
from tests.hosts import build, look


@pytest.fixture
def site(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: Output
) -> Site:
    found = Site(placement, tmp_path, capsys)
    found.register()
    return found


def test_one_pass_makes_placement_agree_and_the_next_writes_nothing(
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
    assert site.of(CARD, "inventories")["VGPU"]["total"] > 0
    second = site.once(*NODE)
    assert second["calls"] == [] and second["writes"] == 0
    assert site.writes() == 0


def test_a_dry_run_prints_the_calls_and_writes_nothing(site: Site) -> None:
    text = site.run("--dry-run", *NODE)
    lines = text.splitlines()
    assert any(line.startswith("create provider ") for line in lines)
    assert "would be made" in lines[-1]
    assert site.writes() == 0
    assert not site.state.exists()
    done = site.run("--once", *NODE)
    assert done.splitlines()[:-1] == lines[:-1]


def test_each_call_of_the_json_is_the_line_of_the_text(site: Site) -> None:
    text = site.run("--dry-run", *NODE).splitlines()
    found = json.loads(site.run("--dry-run", "--json", *NODE))
    assert found["calls"] == text[:-1]
    assert found["dry_run"] is True and found["writes"] == 0
    assert found.keys() == {
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
def test_problems_of_host_and_configuration_are_printed(
    site: Site, mode: str
) -> None:
    spec = '{"address": "0000:99:00.0"}'
    text = site.conf.read_text().replace(
        "[nova_accel]\n",
        f"[nova_accel]\ndevce_spec = x\ndevice_spec = {spec}\n",
    )
    site.conf.write_text(text)
    lines = site.run(mode, *NODE).splitlines()
    problems = [line for line in lines if line.startswith("problem: ")]
    assert problems == [
        f"problem: {site.conf} [nova_accel] devce_spec: is ignored:"
        " nova-accel has no such option; did you mean device_spec?",
        f"problem: [nova_accel] device_spec = {spec}: matches nothing on"
        " this host; check its address and ids",
    ]
    assert "calls" in lines[-1]


@pytest.mark.parametrize("mode", ["--dry-run", "--once"])
def test_misspelt_options_are_printed_where_placement_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    site.write_conf("http://127.0.0.1:9")
    with site.conf.open("a") as file:
        file.write("[nova-accel]\n")
    text, words = site.speak(mode, *NODE, status=1)
    first, second = words.splitlines()
    assert text == "" and "Connection refused" in second
    assert first == (
        f"placement-sync: {site.conf} [nova-accel]: is ignored: nova-accel"
        " has no such section; did you mean [nova_accel]?"
    )


def test_what_was_wiped_by_hand_is_back(site: Site) -> None:
    site.once(*NODE)
    own = names.provider_uuid(ROOT, CARD)
    before = site.of(CARD, "inventories"), set(site.of(CARD, "traits"))
    site.placement.call("DELETE", f"/resource_providers/{own}/inventories")
    site.placement.call("DELETE", f"/resource_providers/{own}/traits")
    site.once(*NODE)
    assert site.of(CARD, "inventories") == before[0]
    assert set(site.of(CARD, "traits")) == before[1]


def test_nothing_of_a_captured_host_needs_this_machine(
    site: Site, tmp_path: pathlib.Path
) -> None:
    archive = tmp_path / "host.tar.gz"
    assert not inspect_cli.main(
        ["capture", "--root", str(site.root), "-o", str(archive)]
    )
    site.capsys.readouterr()
    asked = ["--dry-run", "--root", str(archive), *NODE]
    asked += ["--endpoint", site.placement.url]
    assert main.main(asked) == 0
    from_archive = site.capsys.readouterr().out.splitlines()[:-1]
    assert from_archive == site.run("--dry-run", *NODE).splitlines()[:-1]
    assert site.writes() == 0


def test_a_host_from_elsewhere_has_to_be_named(site: Site) -> None:
    asked = ["--dry-run", "--root", str(site.root)]
    assert main.main([*asked, "--endpoint", site.placement.url]) == 2
    assert "--host" in site.capsys.readouterr().err
    assert main.main(asked) == 2  # nor are there credentials
    assert "--os-cloud" in site.capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--host-uuid", ROOT], ["--host", HOST, "--host-uuid", ROOT]]
)
def test_the_node_is_told_by_its_uuid(site: Site, options: list[str]) -> None:
    assert site.once(*options)["host"] == {"name": HOST, "uuid": ROOT}


def test_the_node_is_told_by_the_file_of_nova_compute(site: Site) -> None:
    site.conf.with_name("compute_id").write_text(f"{ROOT}\n")
    assert site.once()["host"] == {"name": HOST, "uuid": ROOT}


def test_the_node_is_told_by_what_nova_compute_published(site: Site) -> None:
    root = providers.ProviderRoot(name=HOST, uuid=ROOT)
    site.conf.with_name("compute_id").write_text(str(uuid.UUID(int=7)))
    claims_file.ClaimsFile(str(site.state)).write(root, (), ())
    assert site.once()["host"] == {"name": HOST, "uuid": ROOT}


def test_a_node_that_is_missing_is_made_only_if_asked_for(
    site: Site,
) -> None:
    words = site.fail("--once", "--host", "bare1")
    assert "--host" in words and "--create-root" in words
    planned = site.run("--dry-run", "--host", "bare1", "--create-root")
    assert planned.startswith("create provider bare1 (")
    assert site.writes() == 0
    made = site.once("--host", "bare1", "--create-root")
    assert made["host"]["uuid"] == str(uuid.uuid5(uuid.NAMESPACE_DNS, "bare1"))
    assert names.provider_name("bare1", CARD) in site.names()
    assert site.once("--host", "bare1")["writes"] == 0


def test_placement_that_is_away_is_told_in_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    site.write_conf("http://127.0.0.1:9")
    said = site.fail("--once", *NODE, status=1)
    assert said.startswith(
        f"placement-sync: GET /resource_providers?name={HOST}:"
        " http://127.0.0.1:9: Connection refused; "
    )
    assert said.count("efuse") == 1


@pytest.mark.parametrize(
    "text, told",
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
def test_a_setting_that_cant_be_used_is_told_in_one_line(
    site: Site, text: str, told: str
) -> None:
    site.conf.write_text(text)
    assert told.format(conf=site.conf) in site.fail("--once", *NODE)


def test_a_card_that_goes_is_withdrawn_unless_servers_hold_it(
    site: Site,
) -> None:
    site.once(*NODE)
    site.placement.call(
        "PUT",
        f"/allocations/{uuid.uuid4()}",
        {
            "allocations": {
                names.provider_uuid(ROOT, CARD): {"resources": {"VGPU": 1}}
            },
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
            "project_id": "p",
            "user_id": "u",
        },
    )
    for address in (CARD, OTHER):
        (site.root / "sys/bus/pci/devices" / address).unlink()
        (site.root / "sys/class/mdev_bus" / address).unlink()
    found = site.once(*NODE)
    assert found["problems"] == []
    assert names.MISSING_TRAIT in site.of(CARD, "traits")
    assert names.provider_name(HOST, OTHER) not in site.names()


def test_a_book_that_this_user_cant_read_stops_the_pass(site: Site) -> None:
    site.state.mkdir()
    (site.state / "book.json").write_text("{")
    assert "book.json" in site.fail("--once", *NODE)
    assert site.writes() == 0


def test_claims_that_nova_compute_published_are_booked(site: Site) -> None:
    """The second card holds three vGPUs that somebody made."""
    site.once(*NODE)
    taken = site.of(OTHER, "inventories")["VGPU"]["reserved"]
    assert taken == 3
    host = look.device(look.read(site.root), OTHER)
    own = names.provider_uuid(ROOT, OTHER)
    one = host.partitions[0]
    claim = model.Claim(
        consumer=str(uuid.uuid4()),
        provider=own,
        device=OTHER,
        profile=one.profile,
        slot="slot-0",
        parent=one.parent,
        handle=one.handle,
        technology=host.technology,
    )
    book = claims_file.ClaimsFile(str(site.state))
    root = providers.ProviderRoot(name=HOST, uuid=ROOT)
    book.write(root, (claim,), ())
    site.once()
    assert site.of(OTHER, "inventories")["VGPU"]["reserved"] == 2
    other = providers.ProviderRoot(name="other", uuid=str(uuid.uuid4()))
    book.write(other, (claim,), ())  # of another node: it tells nothing
    site.once(*NODE)
    assert site.of(OTHER, "inventories")["VGPU"]["reserved"] == 3


def test_mdevs_of_ours_are_booked_without_a_book(site: Site) -> None:
    own = names.provider_uuid(ROOT, CARD)
    ours = names.mdev_uuid(own, "slot-0")
    place = site.root / "sys/class/mdev_bus" / CARD / ours
    place.mkdir()
    kind = next((place.parent / "mdev_supported_types").iterdir())
    (place / "mdev_type").symlink_to(kind)
    (site.root / "sys/bus/mdev/devices" / ours).symlink_to(place)
    site.once(*NODE)
    assert site.of(CARD, "inventories")["VGPU"]["reserved"] == 0
    assert site.of(OTHER, "inventories")["VGPU"]["reserved"] == 3


def test_the_version_is_the_packages(site: Site) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    said = site.capsys.readouterr().out
    assert said == f"placement-sync {capture.library_version()}\n"


def test_a_host_that_lost_its_files_is_not_taken_for_empty(
    site: Site,
) -> None:
    site.once(*NODE)
    build.break_path(site.root, "bus/pci/devices", {"fault": "circle"})
    site.speak("--once", *NODE)
    assert names.provider_name(HOST, CARD) in site.names()


def test_a_cloud_of_clouds_yaml_is_used(
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
    assert "elsewhere" in site.fail("--once", "--os-cloud", "elsewhere")


def test_no_password_is_told(site: Site) -> None:
    site.conf.write_text(
        f"[nova_accel]\nroot = {site.root}\nstate_dir = {site.state}\n"
        "[placement]\nauth_type = password\nusername = nova\n"
        f"password = {SECRET}\nproject_name = service\n"
        f"auth_url = http://nova:{SECRET}@127.0.0.1:9/v3\n"
    )
    site.fail("--once", *NODE, status=1)  # which looks for it


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
            "--once", *NODE, status=1
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
def test_a_user_at_a_terminal_sees_that_placement_is_slow(
    site: Site, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "DELAY_S", 0.1)
    with odd.answering(odd.http("200 OK", b"[]"), pause_s=0.01) as url:
        site.write_conf(url)
        asked = ["--config-file", str(site.conf), *words, *NODE]
        assert main.main(asked) == 1
    first = stderr.getvalue().splitlines()[0]
    assert first == "placement-sync: waiting for an answer of Placement"
