# SPDX-License-Identifier: Apache-2.0
"""``placement-sync drain`` and ``status``, over a real Placement."""

import json
import pathlib
import uuid

import pytest

from nova_accel import names, providers
from nova_accel.host import published
from placement_sync import cli
from tests.functional.sync import servers
from tests.functional.sync.sites import (
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
    assert said.startswith(f"{CARD}: no new server")
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
    assert "Nothing is drained" in site.run("drain")


def test_the_status_is_what_the_passes_left(site: Site) -> None:
    assert "No pass has left" in site.run("status", status=1)
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


def test_a_drain_needs_a_reason(site: Site) -> None:
    assert "--reason" in site.fail("drain", CARD)
    assert not site.state.exists()


def test_options_of_passes_are_refused_elsewhere(site: Site) -> None:
    for words in (["--dry-run", "drain"], ["--once", "audit", "--heal"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
        assert f"{words[0]} goes without" in site.capsys.readouterr().err


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
    published.Published(str(site.state)).write(mine, (), ())
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
    assert "Nothing is drained" in site.run("drain")
