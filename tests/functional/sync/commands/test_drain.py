# SPDX-License-Identifier: Apache-2.0
"""Commands drain, undrain and status with a real Placement."""

import json
import pathlib
import threading
import uuid

import pytest

from nova_accel import model
from nova_accel.host.state import claims_file
from nova_accel.model import names, providers
from placement_sync.cli import main
from tests.functional.sync.support import nova_standin, servers
from tests.functional.sync.support.sites import (
    CARD,
    HOST,
    NODE,
    OTHER,
    ROOT,
    Output,
    Site,
)

FOUR_Q = "CUSTOM_VGPU_NVIDIA_T4_4Q"


@pytest.fixture
def site(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: Output
) -> Site:
    found = Site(placement, tmp_path, capsys)
    found.register()
    return found


def test_a_drain_lasts_and_is_healed(site: Site) -> None:
    site.once(*NODE)
    before = site.of(CARD, "inventories"), set(site.of(CARD, "traits"))
    said = site.run("drain", CARD.upper(), "--reason", "the fan  fails")
    assert said.startswith(f"{CARD}: drained; no new server")
    assert "the fan fails" in site.run("drain")
    for _ in range(2):  # in each pass a new process reads it
        site.once(*NODE)
        vgpus = site.of(CARD, "inventories")["VGPU"]
        assert vgpus["reserved"] == vgpus["total"]
        traits = set(site.of(CARD, "traits"))
        assert names.DRAINED_TRAIT in traits and FOUR_Q not in traits
        assert names.DRAINED_TRAIT not in site.of(OTHER, "traits")
    assert site.run("undrain", CARD).startswith(CARD)
    site.once(*NODE)
    assert site.of(CARD, "inventories") == before[0]
    assert set(site.of(CARD, "traits")) == before[1]
    assert "No device is drained" in site.run("drain")


def claim(device: str) -> model.Claim:
    """Return what a server has of a device."""
    return model.Claim(
        consumer=str(uuid.UUID(int=0x77)),
        provider=names.provider_uuid(ROOT, device),
        device=device,
        profile="T4-4Q",
        slot="slot-0",
        parent=device,
        handle=str(uuid.UUID(int=0x78)),
        technology="mdev",
        state=model.ClaimState.MADE,
    )


def publish(site: Site, *claims: model.Claim) -> None:
    """Publish claims as nova-compute does."""
    node = providers.ProviderRoot(name=HOST, uuid=ROOT)
    claims_file.ClaimsFile(str(site.state)).write(node, claims, ())


def test_a_drain_tells_which_servers_stay(site: Site) -> None:
    said = site.run("drain", CARD, "--reason", "r")
    assert "has published no claims" in said
    publish(site, claim(CARD))
    server = claim(CARD).consumer
    said = site.run("drain", CARD, "--reason", "r")
    assert f"Server {server} uses it\n" in said
    said = site.run("drain", OTHER, "--reason", "r")
    assert "No server uses it" in said
    with nova_standin.serve() as nova:
        nova.servers[server] = {"id": server, "name": "painter"}
        door = ("--compute-endpoint", nova.url)
        said = site.run("drain", CARD, "--reason", "r", *door)
        assert f"{server} uses it (painter)\n" in said


def test_a_drain_can_be_waited_for(site: Site) -> None:
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", "--wait", "0", *NODE)
    text, words = site.speak(*drain, status=1)
    assert "no new server" in text
    assert "gave up waiting for Placement to have the trait" in words
    site.once(*NODE)
    assert site.run("drain", CARD, "--wait", "0", *NODE)
    assert "one or more" in site.fail("drain", "--wait", "0")


def test_a_drain_that_cant_wait_drains_nothing(site: Site) -> None:
    site.conf.write_text(
        f"[nova_accel]\nroot = {site.root}\nstate_dir = {site.state}\n"
    )
    drain = ("drain", CARD, "--reason", "r", "--wait")
    assert "[placement] auth_type = :" in site.fail(*drain, *NODE)
    unnamed = ("--root", str(site.root), "--endpoint", site.placement.url)
    assert "--host" in site.fail(*drain, *unnamed)
    assert not site.state.exists()


@pytest.mark.parametrize("where", ["claims", "placement"])
def test_an_empty_card_can_be_waited_for(site: Site, where: str) -> None:
    site.once(*NODE)
    one = claim(CARD)
    publish(site, *([one] if where == "claims" else []))
    if where == "placement":
        allocate(site, one, {"VGPU": 1})
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty")
    _, words = site.speak(*drain, "0", status=1)
    assert f"in use by {one.consumer}" in words
    freed = threading.Timer(0.5, lambda: publish(site))
    if where == "placement":
        freed = threading.Timer(0.5, lambda: allocate(site, one, {}))
    freed.start()
    assert "no new server" in site.run(*drain)
    freed.join()
    assert names.DRAINED_TRAIT in site.of(CARD, "traits")


def test_a_card_that_placement_still_offers_is_not_empty(site: Site) -> None:
    site.once(*NODE)
    publish(site)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty", "0")
    _, words = site.speak(*drain, status=1)
    assert "gave up waiting for all servers to release" in words
    assert "Placement does not have the trait yet" in words
    assert names.DRAINED_TRAIT not in site.of(CARD, "traits")
    site.once(*NODE)
    assert site.run(*drain)
    assert names.DRAINED_TRAIT in site.of(CARD, "traits")


def test_a_card_that_is_gone_is_empty_without_its_servers(site: Site) -> None:
    """Its provider is marked as missing: no pass drains it."""
    site.once(*NODE)
    publish(site)
    allocate(site, claim(CARD), {"VGPU": 1})
    (site.root / "sys/bus/pci/devices" / CARD).unlink()
    (site.root / "sys/class/mdev_bus" / CARD).unlink()
    drain = ("drain", CARD, "--reason", "r", "--force", *NODE)
    site.run(*drain)
    site.once(*NODE)
    assert names.DRAINED_TRAIT not in site.of(CARD, "traits")
    _, words = site.speak(*drain, "--wait-empty", "0", status=1)
    assert f"in use by {claim(CARD).consumer}" in words
    allocate(site, claim(CARD), {})
    assert site.run(*drain, "--wait-empty", "0")


def test_a_card_of_unknown_claims_is_not_taken_for_empty(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty", "0")
    _, words = site.speak(*drain, status=1)
    assert "all servers to release" in words
    assert f"there is no {site.state}/book.json" in words
    publish(site)
    assert site.run(*drain)


def test_of_a_recorded_host_placement_alone_is_asked(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    host = ("--root", str(site.root), *NODE)
    drain = ("drain", CARD, "--reason", "r", *host, "--wait-empty", "0")
    _, words = site.speak(*drain)
    assert "only Placement" in words and "--state-dir" in words
    assert words.count("\n") == 1


def allocate(site: Site, one: model.Claim, amounts: dict[str, int]) -> None:
    path = f"/allocations/{one.consumer}"
    before = site.placement.call("GET", path)
    site.placement.call(
        "PUT",
        path,
        {
            "allocations": {one.provider: {"resources": amounts}}
            if amounts
            else {},
            "consumer_generation": before.get("consumer_generation"),
            "project_id": "project",
            "user_id": "user",
            "consumer_type": "INSTANCE",
        },
    )


def test_the_status_is_what_the_passes_left(site: Site) -> None:
    assert "There is no status" in site.run("status", status=1)
    site.once(*NODE)
    text = site.run("status")
    assert text.startswith("placement-sync: fresh\n")
    assert f"compute node  {HOST} ({ROOT})" in text
    assert "2 ok" in text and "VGPU" in text
    found = json.loads(site.run("status", "--json"))
    (one,) = found["writers"]
    assert one["writer"] == "placement-sync" and not one["is_stale"]
    assert one["outcome"] == "ok" and one["root"]["uuid"] == ROOT
    assert site.placement.clear() != []
    site.run("status")
    assert site.placement.clear() == []


def test_a_pass_that_failed_is_told_by_the_status(site: Site) -> None:
    site.once(*NODE)
    site.fail("--once", "--host", "other")
    assert "is not a compute node" in site.run("status", status=1)


def test_a_device_that_is_none_is_refused_unless_forced(site: Site) -> None:
    words = site.fail("drain", "0000:99:00.0", "--reason", "r")
    assert CARD in words and OTHER in words and "--force" in words
    site.run("drain", "0000:99:00.0", "--reason", "gone", "--force")
    assert "0000:99:00.0" in site.run("drain")
    assert CARD in site.fail("undrain", CARD)
    site.run("undrain", "99:00.0")
    assert json.loads(site.run("drain", "--json")) == {"drained": []}


def test_a_missing_state_dir_is_not_taken_for_nothing_drained(
    site: Site,
) -> None:
    for words in (["drain"], ["undrain", CARD]):
        said = site.fail(*words)
        option = f"{site.conf} [nova_accel] state_dir = {site.state}"
        assert f"{option}: is no directory" in said
    site.state.mkdir()
    assert "No device is drained" in site.run("drain")
    # Another host's need not be on this machine.
    assert main.main(["drain", "--root", str(site.root)]) == 0
    assert "No device is drained" in site.capsys.readouterr().out


def test_without_a_nova_conf_a_state_dir_can_be_missing_too(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nova_accel.config.conf.CONFIG_FILES", ())
    missing = tmp_path / "missing"
    monkeypatch.setenv("OS_NOVA_ACCEL__STATE_DIR", str(missing))
    for words in (["drain"], ["undrain", CARD]):
        assert main.main(words) == 2
        said = site.capsys.readouterr().err
        assert f"state_dir = {missing}: is no directory" in said


def test_a_drain_needs_a_reason(site: Site) -> None:
    assert "--reason" in site.fail("drain", CARD)
    assert not site.state.exists()


def test_options_of_passes_are_refused_elsewhere(site: Site) -> None:
    for words in (["--dry-run", "drain"], ["--once", "audit", "--heal"]):
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        assert ended.value.code == 2
        assert f"{words[0]} can't be used with" in site.capsys.readouterr().err


def test_options_stand_before_a_command_or_behind_it(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    before = site.run("--json", "drain")
    assert before == site.run("drain", "--json")
    assert [one["address"] for one in json.loads(before)["drained"]] == [CARD]


def test_the_metrics_are_left_in_a_file(
    site: Site, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("prometheus_client")
    file = tmp_path / "sync.prom"
    site.once(*NODE, "--metrics-textfile", str(file))
    assert 'writer="placement-sync"' in file.read_text()


def test_what_a_single_pass_warns_of_is_printed(
    site: Site, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("prometheus_client")
    nowhere = str(tmp_path / "missing" / "sync.prom")
    text, words = site.speak("--once", *NODE, "--metrics-textfile", nowhere)
    assert "0 left undone" in text
    (line,) = words.splitlines()
    assert line.startswith("placement-sync: ") and nowhere in line


def test_of_this_machine_s_state_another_host_gets_the_drains_only(
    site: Site,
) -> None:
    """Not what its nova-compute published; nor is its status written."""
    mine = providers.ProviderRoot(name="mine", uuid=str(uuid.UUID(int=9)))
    claims_file.ClaimsFile(str(site.state)).write(mine, (), ())
    there = ("--root", str(site.root))
    assert "--host" in site.fail("--once", *there)
    site.run("drain", CARD, "--reason", "r", *there)
    assert CARD in site.run("drain", *there)
    site.once(*there, *NODE)
    assert names.DRAINED_TRAIT in site.of(CARD, "traits")
    assert sorted(p.name for p in site.state.iterdir()) == [
        "book.json",
        "drained",
    ]
    assert "--state-dir" in site.fail("status", *there)
    site.once(*there, *NODE, "--state-dir", str(site.state))
    assert "fresh" in site.run("status")


def test_drains_that_cant_be_read_stop_the_pass(site: Site) -> None:
    """Whoever does not know them would offer what is drained."""
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    place = site.state / "drained"
    place.rename(site.state / "kept")
    place.write_text("no directory")
    site.writes()
    for how in ("--once", "--dry-run"):
        assert str(place) in site.fail(how, *NODE)
    assert site.writes() == 0


@pytest.mark.parametrize("address", ["", " ", "\udcff", "a\x1b[2J", "a\nb"])
def test_what_is_no_address_is_not_drained_even_by_force(
    site: Site, address: str
) -> None:
    said = site.fail("drain", address, "--reason", "x", "--force")
    assert "is not a device's address" in said
    assert not site.state.exists()
