# SPDX-License-Identifier: Apache-2.0
"""``openstack accel`` with a real Placement."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.functional.sync.fleet import openstack_shell, test_fleet
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import (
    identity,
    nova_standin,
    servers,
)
from tests.support import golden

Site = test_fleet.Site
Client = openstack_shell.OpenStack


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    with nova_standin.serve() as nova:
        yield Site(placement, tmp_path, capsys, nova).fill()


@pytest.fixture
def keystone(site: Site) -> Iterator[identity.Identity]:
    with identity.Identity(site.placement.url).running() as running:
        yield running


@pytest.fixture
def client(
    site: Site,
    keystone: identity.Identity,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Client:
    return Client(
        site.placement.url,
        site.nova.url,
        f"{keystone.url}/v3",
        tmp_path,
        monkeypatch,
        capsys,
    )


def test_commands_print_what_nova_accel_prints(
    site: Site, client: Client
) -> None:
    for words in (
        ["device", "list"],
        ["device", "list", "--long", "-f", "json"],
        ["device", "show", "0000:41:00.0", "-f", "yaml"],
        ["allocation", "list", "--long", "-f", "csv"],
        ["host", "list"],
        ["usage", "list", "--project", "p"],
        ["explain", "--extra-spec", "resources_A:VGPU=1"],
    ):
        own = site.execute(*words)
        assert client.run("accel", *words) == own, words


def test_a_user_gets_own_servers_and_a_word_for_the_rest(
    site: Site, client: Client
) -> None:
    site.nova.is_user = True
    words = "accel", "allocation", "list"
    status, out, err = client.run(*words, "-f", "json", user="alice")
    assert status == 0 and "403" not in out
    assert {(r["Server"], *r["Profile"]) for r in json.loads(out)} == {
        ("vm-a", "A40-8Q"),
        ("vm-b", "VGPU"),
    }
    assert "Placement refuses" in err
    for refused in (
        ("accel", "device", "list"),
        ("accel", "host", "list"),
        (*words, "--host", "t4-mdev"),
    ):
        status, out, err = client.run(*refused, user="alice")
        assert (status, out) == (1, ""), refused
        assert "403" in err


def test_projects_have_names(
    client: Client, keystone: identity.Identity
) -> None:
    keystone.names["p"] = "rendering"
    assert "| rendering " in client.run("accel", "usage", "list")[1]
    words = "accel", "allocation", "list", "--project", "rendering"
    _, out, _ = client.run(*words, "-f", "json")
    assert [row["Project"] for row in json.loads(out)] == ["p"]
    _, out, _ = client.run("accel", "report", "--format", "text")
    assert "  rendering: VGPU 1 on 1 device" in out
    _, out, _ = client.run("accel", "allocation", "list", user="alice")
    assert "| rendering " in out


def test_names_of_projects_that_keystone_refuses(
    site: Site, client: Client, keystone: identity.Identity
) -> None:
    site.allocate(site.card, test_fleet.OTHER_VM, **test_fleet.PART)
    site.nova.servers[test_fleet.OTHER_VM]["tenant_id"] = "q"
    keystone.names |= {"p": "films", "q": "films"}
    written = transcript.Transcript(
        client.capsys,
        {keystone.url: "KEYSTONE"},
        lambda words: client.execute("accel", *words),
    )
    written.run("usage list --project films")
    keystone.answers["/v3/projects/p"] = 403
    written.run("usage list -c Project -c Model")
    written.check("names of projects")


def test_a_user_sees_a_flavor_without_the_room_for_it(
    site: Site, client: Client
) -> None:
    site.nova.add_flavor("gpu.8q", **test_fleet.SPECS)
    words = "accel", "flavor", "show", "gpu.8q"
    everything = json.loads(client.run(*words, "-f", "json")[1])

    status, out, err = client.run(*words, "-f", "json", user="alice")
    assert status == 0
    assert json.loads(out) == everything | {
        "can_be_served": None,
        "room": None,
    }
    assert "Placement refuses to show devices" in err and "403" not in err
    status, out, _ = client.run(*words, user="alice")
    assert status == 0
    assert "1 x A40-8Q" in out and "numa_policy: preferred (default)" in out


def test_the_keys_of_the_json_are_those_of_version_1(
    site: Site, client: Client
) -> None:
    site.nova.add_flavor("gpu.8q", **test_fleet.SPECS)
    keys = {}
    for words in (
        ("device", "list", "--long"),
        ("device", "show", "0000:41:00.0"),
        ("allocation", "list", "--long"),
        ("host", "list"),
        ("usage", "list"),
        ("profile", "list", "--all", "--long"),
        ("flavor", "show", "gpu.8q"),
        ("capacity", "show", "--flavor", "gpu.8q"),
    ):
        status, out, _ = client.run("accel", *words, "-f", "json")
        assert status == 0, words
        printed = json.loads(out)
        keys[" ".join(words[:2])] = list(
            printed if isinstance(printed, dict) else printed[0]
        )
    text = json.dumps(keys, indent=2) + "\n"
    golden.check(golden.PLACE / "fleet/openstack-accel-v1.json", text)


def test_the_commands_of_cyborg_are_still_there(client: Client) -> None:
    """``accel`` begins with the same letters as Cyborg's ``accelerator``."""
    _, out, _ = client.run("help", "accelerator", "device", "list")
    assert "accelerator device list" in out
    _, out, _ = client.run("help", "accel", "device", "list")
    assert " accel device list" in out
