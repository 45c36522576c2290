# SPDX-License-Identifier: Apache-2.0
"""Commands drain, undrain and status with a real Placement."""

import json
import pathlib
import threading
import uuid

import pytest

from nova_accel import model
from nova_accel.cli import registered_readers
from nova_accel.host.state import claims_file
from nova_accel.model import names, providers
from tests.functional.sync.commands import programs
from tests.functional.sync.support import nova_standin
from tests.functional.sync.support.sites import (
    CARD,
    HOST,
    NODE,
    OTHER,
    ROOT,
    Site,
)

FOUR_Q = "CUSTOM_VGPU_NVIDIA_T4_4Q"


def test_a_drain_lasts_until_undrain(site: Site) -> None:
    site.once(*NODE)
    before = site.read(CARD, "inventories"), set(site.read(CARD, "traits"))
    output = site.run("drain", CARD.upper(), "--reason", "the fan  fails")
    assert output.startswith(f"{CARD}: drained; no new server")
    assert "the fan fails" in site.run("drain")
    for _ in range(2):  # Each pass reads the drains again.
        site.once(*NODE)
        vgpus = site.read(CARD, "inventories")["VGPU"]
        assert vgpus["reserved"] == vgpus["total"]
        traits = set(site.read(CARD, "traits"))
        assert names.DRAINED_TRAIT in traits and FOUR_Q not in traits
        assert names.DRAINED_TRAIT not in site.read(OTHER, "traits")
    assert site.run("undrain", CARD).startswith(CARD)
    site.once(*NODE)
    assert site.read(CARD, "inventories") == before[0]
    assert set(site.read(CARD, "traits")) == before[1]
    assert "No device is drained" in site.run("drain")


def claim(device: str) -> model.Claim:
    """Return a server's claim of a device."""
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


def test_a_drain_lists_the_servers_of_the_device(site: Site) -> None:
    output = site.run("drain", CARD, "--reason", "r")
    assert "has published no claims" in output
    publish(site, claim(CARD))
    server = claim(CARD).consumer
    output = site.run("drain", CARD, "--reason", "r")
    assert f"Server {server} uses it\n" in output
    output = site.run("drain", OTHER, "--reason", "r")
    assert "No server uses it" in output
    with nova_standin.serve() as nova:
        nova.servers[server] = {"id": server, "name": "painter"}
        endpoint = ("--compute-endpoint", nova.url)
        output = site.run("drain", CARD, "--reason", "r", *endpoint)
        assert f"{server} uses it (painter)\n" in output


def test_a_drain_can_be_waited_for(site: Site) -> None:
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", "--wait", "0", *NODE)
    text, words = site.execute(*drain, status=1)
    assert "no new server" in text
    assert "gave up waiting for Placement to have the trait" in words
    site.once(*NODE)
    assert site.run("drain", CARD, "--wait", "0", *NODE)
    assert "name one or more" in site.fail("drain", "--wait", "0")


def test_the_end_of_a_drain_can_be_waited_for(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    text, words = site.execute("undrain", CARD, "--wait", "0", *NODE, status=1)
    assert "it is offered again" in text
    assert "gave up waiting for Placement to drop the trait" in words
    assert f"still has {names.DRAINED_TRAIT}" in words
    site.run("drain", CARD, "--reason", "r")
    passes = threading.Timer(0.5, lambda: site.once(*NODE))
    site.run("drain", OTHER, "--reason", "other")
    site.once(*NODE)
    passes.start()
    _, words = site.execute("undrain", CARD, "--wait", *NODE)
    passes.join()
    # A wait of over two seconds is in the error output.
    waiting = "waiting for Placement to drop the trait of drained devices"
    assert words in ("", f"nova-accel: {waiting} on {CARD}\n")
    assert names.DRAINED_TRAIT not in site.read(CARD, "traits")
    assert names.DRAINED_TRAIT in site.read(OTHER, "traits")


def test_an_invalid_wait_drains_nothing(site: Site) -> None:
    site.conf.write_text(
        f"[nova_accel]\nroot = {site.root}\nstate_dir = {site.state}\n"
    )
    drain = ("drain", CARD, "--reason", "r", "--wait")
    assert "[placement] auth_type has no value: " in site.fail(*drain, *NODE)
    unnamed = ("--root", str(site.root), "--endpoint", site.placement.url)
    assert "--host" in site.fail(*drain, *unnamed)
    assert not site.state.exists()


@pytest.mark.parametrize("where", ["claims", "placement"])
def test_an_empty_card_can_be_waited_for(site: Site, where: str) -> None:
    site.once(*NODE)
    card_claim = claim(CARD)
    publish(site, *([card_claim] if where == "claims" else []))
    if where == "placement":
        allocate(site, card_claim, {"VGPU": 1})
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty")
    _, words = site.execute(*drain, "0", status=1)
    assert f"in use by {card_claim.consumer}" in words
    freed = threading.Timer(0.5, lambda: publish(site))
    if where == "placement":
        freed = threading.Timer(0.5, lambda: allocate(site, card_claim, {}))
    freed.start()
    assert "no new server" in site.run(*drain)
    freed.join()
    assert names.DRAINED_TRAIT in site.read(CARD, "traits")


def test_a_change_of_a_driver_waits_for_a_card(site: Site) -> None:
    """It is offered, then a server was scheduled before, then it is free."""
    site.once(*NODE)
    reader = registered_readers.open_drains((str(site.conf),))
    card_claim = claim(CARD)
    allocate(site, card_claim, {"VGPU": 1})
    site.run("drain", CARD, "--reason", "r")
    reason = reader.explain_wait(ROOT, [CARD])
    assert reason.endswith(f"has no {names.DRAINED_TRAIT} yet")
    site.once(*NODE)
    assert card_claim.consumer in reader.explain_wait(ROOT, [CARD])
    allocate(site, card_claim, {})
    assert reader.explain_wait(ROOT, [CARD]) == ""


def test_a_card_that_placement_offers_is_not_empty(site: Site) -> None:
    site.once(*NODE)
    publish(site)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty", "0")
    _, words = site.execute(*drain, status=1)
    assert "gave up waiting for all servers to release" in words
    assert f"has no {names.DRAINED_TRAIT} yet" in words
    assert names.DRAINED_TRAIT not in site.read(CARD, "traits")
    site.once(*NODE)
    assert site.run(*drain)
    assert names.DRAINED_TRAIT in site.read(CARD, "traits")


def test_a_missing_card_is_empty_without_servers(site: Site) -> None:
    """Its provider is marked as missing: no pass drains it."""
    site.once(*NODE)
    publish(site)
    allocate(site, claim(CARD), {"VGPU": 1})
    (site.root / "sys/bus/pci/devices" / CARD).unlink()
    (site.root / "sys/class/mdev_bus" / CARD).unlink()
    drain = ("drain", CARD, "--reason", "r", "--force", *NODE)
    site.run(*drain)
    site.once(*NODE)
    assert names.DRAINED_TRAIT not in site.read(CARD, "traits")
    _, words = site.execute(*drain, "--wait-empty", "0", status=1)
    assert f"in use by {claim(CARD).consumer}" in words
    allocate(site, claim(CARD), {})
    assert site.run(*drain, "--wait-empty", "0")


def test_a_card_with_unknown_claims_is_not_empty(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    drain = ("drain", CARD, "--reason", "r", *NODE, "--wait-empty", "0")
    _, words = site.execute(*drain, status=1)
    assert "all servers to release" in words
    assert f"there is no {site.state}/book.json" in words
    publish(site)
    assert site.run(*drain)


def test_a_captured_host_is_checked_in_placement_only(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    host = ("--root", str(site.root), *NODE)
    drain = ("drain", CARD, "--reason", "r", *host, "--wait-empty", "0")
    _, words = site.execute(*drain)
    assert "only Placement" in words and "--state-dir" in words
    assert words.count("\n") == 1


def allocate(
    site: Site, card_claim: model.Claim, amounts: dict[str, int]
) -> None:
    path = f"/allocations/{card_claim.consumer}"
    before = site.placement.call("GET", path)
    site.placement.call(
        "PUT",
        path,
        {
            "allocations": {card_claim.provider: {"resources": amounts}}
            if amounts
            else {},
            "consumer_generation": before.get("consumer_generation"),
            "project_id": "project",
            "user_id": "user",
            "consumer_type": "INSTANCE",
        },
    )


def test_the_status_shows_the_last_pass(site: Site) -> None:
    assert "There is no status" in site.run("status", status=1)
    site.once(*NODE)
    text = site.run("status")
    assert text.startswith("placement-sync: fresh\n")
    assert f"compute node  {HOST} ({ROOT})" in text
    assert "2 ok" in text and "VGPU" in text
    status = json.loads(site.run("status", "-f", "json"))
    (writer,) = status["writers"]
    assert writer["writer"] == "placement-sync" and not writer["is_stale"]
    assert writer["outcome"] == "ok" and writer["root"]["uuid"] == ROOT
    assert site.placement.clear() != []
    site.run("status")
    assert site.placement.clear() == []


def test_an_unknown_device_needs_force(site: Site) -> None:
    words = site.fail("drain", "0000:99:00.0", "--reason", "r")
    assert CARD in words and OTHER in words and "--force" in words
    site.run("drain", "0000:99:00.0", "--reason", "gone", "--force")
    assert "0000:99:00.0" in site.run("drain")
    assert CARD in site.fail("undrain", CARD)
    site.run("undrain", "99:00.0")
    assert json.loads(site.run("drain", "-f", "json")) == {"drained": []}


def test_a_missing_state_dir_is_an_error(
    site: Site,
) -> None:
    for words in (["drain"], ["undrain", CARD]):
        error = site.fail(*words)
        option = f"{site.conf} [nova_accel] state_dir = {site.state}"
        assert f"{option}: is no directory" in error
    site.state.mkdir()
    assert "No device is drained" in site.run("drain")
    # A captured host needs no state_dir on this machine.
    assert programs.main(["drain", "--root", str(site.root)]) == 0
    assert "No device is drained" in site.capsys.readouterr().out


def test_a_missing_state_dir_is_an_error_without_nova_conf(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nova_accel.discovery.nova_conf.CONFIG_FILES", ())
    missing = tmp_path / "missing"
    monkeypatch.setenv("OS_NOVA_ACCEL__STATE_DIR", str(missing))
    for words in (["drain"], ["undrain", CARD]):
        assert programs.main(words) == 2
        error = site.capsys.readouterr().err
        assert f"state_dir = {missing}: is no directory" in error


def test_sync_is_the_run_of_placement_sync(site: Site) -> None:
    site.run("drain", CARD, "--reason", "r")
    calls = json.loads(site.run("sync", "--once", "-f", "json", *NODE))[
        "calls"
    ]
    assert calls and site.once(*NODE)["calls"] == []
    assert "placement-sync: fresh" in site.run("status")


def test_metrics_are_written_to_a_file(
    site: Site, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("prometheus_client")
    file = tmp_path / "sync.prom"
    site.once(*NODE, "--metrics-textfile", str(file))
    assert 'writer="placement-sync"' in file.read_text()


def test_warnings_of_a_single_pass_are_printed(
    site: Site, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("prometheus_client")
    nowhere = str(tmp_path / "missing" / "sync.prom")
    text, words = site.execute(
        "run", "--once", *NODE, "--metrics-textfile", nowhere
    )
    assert "0 left undone" in text
    (line,) = words.splitlines()
    assert line.startswith("placement-sync: ") and nowhere in line


def test_a_captured_host_uses_only_the_drains_of_this_machine(
    site: Site,
) -> None:
    """It does not use this machine's claims file, and writes no status."""
    root = providers.ProviderRoot(name="this-host", uuid=str(uuid.UUID(int=9)))
    claims_file.ClaimsFile(str(site.state)).write(root, (), ())
    captured = ("--root", str(site.root))
    assert "--host" in site.fail("run", "--once", *captured)
    site.run("drain", CARD, "--reason", "r", *captured)
    assert CARD in site.run("drain", *captured)
    site.once(*captured, *NODE)
    assert names.DRAINED_TRAIT in site.read(CARD, "traits")
    assert sorted(p.name for p in site.state.iterdir()) == [
        "book.json",
        "drained",
    ]
    assert "--state-dir" in site.fail("status", *captured)
    site.once(*captured, *NODE, "--state-dir", str(site.state))
    assert "fresh" in site.run("status")


def test_unreadable_drains_stop_the_pass(site: Site) -> None:
    """A pass without the drains would offer drained devices."""
    site.run("drain", CARD, "--reason", "r")
    site.once(*NODE)
    place = site.state / "drained"
    place.rename(site.state / "drained-before")
    place.write_text("no directory")
    site.writes()
    for how in ("--once", "--dry-run"):
        assert str(place) in site.fail("run", how, *NODE)
    assert site.writes() == 0


@pytest.mark.parametrize("address", ["", " ", "\udcff", "a\x1b[2J", "a\nb"])
def test_a_malformed_address_is_refused_with_force(
    site: Site, address: str
) -> None:
    error = site.fail("drain", address, "--reason", "x", "--force")
    problem = f"{address!r} is not a" if address else "the"
    assert f"{problem} device's address" in error
    assert not site.state.exists()
