# SPDX-License-Identifier: Apache-2.0
"""``openstack accel plan capacity`` with a real Placement."""

import html.parser
import json
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from openstackclient import shell

from nova_accel.model import names
from tests.functional.sync.fleet import openstack_shell, test_fleet
from tests.functional.sync.support import (
    identity,
    nova_standin,
    servers,
)
from tests.hosts import look

NODE = "a40-vf-mdev.example.org"


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[test_fleet.Site]:
    with nova_standin.serve() as nova:
        site = test_fleet.Site(placement, tmp_path, capsys, nova).fill()
        nova.add_flavor("gpu.8q", **test_fleet.SPECS)
        nova.add_host(site.root, NODE)
        yield site


def plan(
    site: test_fleet.Site, *words: str, status: int = 0
) -> dict[str, Any]:
    """Return the document of a plan."""
    code, out, err = site.execute("plan", "capacity", *words, "-f", "json")
    assert code == status, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_plan_is_a_document(site: test_fleet.Site) -> None:
    site.set_inventories(site.root, VCPU=10, MEMORY_MB=65536, DISK_GB=999)
    document = plan(
        site,
        "--flavor",
        "gpu.8q",
        "--count",
        "3",
        "--without",
        "t4-mdev",
        status=1,
    )
    (request,) = document["requests"]
    assert document["is_complete"] is False
    assert request == {
        "name": "gpu.8q",
        "count": 3,
        "fits": 2,
        "hosts": {NODE: 2},
        "blocked_by": {"the host: VCPU 2 left, 4 needed": 1},
    }
    assert document["moved"] == document["homeless"] == []


def test_a_maintenance_leaves_servers_homeless(site: test_fleet.Site) -> None:
    site.allocate(site.root, test_fleet.OTHER_VM, VCPU=1)
    document = plan(site, "--without", "a40-vf-mdev", status=1)
    hidden, homeless = document["homeless"]
    assert hidden["uuid"] == test_fleet.MOVE and hidden["problem"]
    assert homeless == {
        "server": "vm-a",
        "uuid": test_fleet.VM,
        "from": NODE,
        "problem": "",
        "blocked_by": {"of another model": 2},
    }
    assert any("1 server of a40" in note for note in document["notes"])


def test_added_hosts_take_the_servers_of_a_maintenance(
    site: test_fleet.Site,
) -> None:
    group = "f" * 8 + "-0000-4000-8000-00000000000f"
    other = str(uuid.UUID(int=7))
    site.allocate(site.card, other, **test_fleet.PART)
    site.nova.add_server(other, NODE, "vm-c", **test_fleet.SPECS)
    for server in (test_fleet.VM, other):
        site.nova.servers[server]["scheduler_hints"] = {"group": [group]}
    site.nova.groups[group] = {
        "id": group,
        "policy": "anti-affinity",
        "members": [test_fleet.VM, other],
    }
    # The standin's Nova says that both are on one host.
    site.nova.servers[other]["OS-EXT-SRV-ATTR:host"] = "gone"
    options = ("--without", "a40-vf-mdev", "--add", "gpu=A40")

    document = plan(site, *options, status=1)
    assert [row["server"] for row in document["moved"]] == ["vm-a"]
    homeless = {row["server"]: row for row in document["homeless"]}
    assert (
        "anti-affinity: the host has a server of the group"
        in homeless["vm-c"]["blocked_by"]
    )

    document = plan(site, *options, "--add", "gpu=A40", status=1)
    assert {row["server"]: row["to"] for row in document["moved"]} == {
        "vm-a": "new-a40-1",
        "vm-c": "new-a40-2",
    }


def test_another_mode_takes_more_or_fewer(site: test_fleet.Site) -> None:
    site.set_inventories(site.root, VCPU=99, MEMORY_MB=999999, DISK_GB=9999)
    profile = ("--profile", "A40-8Q")
    counts = {
        mode: plan(
            site, *profile, "--set", f"host=a40-vf-mdev,{mode}", status=1
        )["requests"][0]["fits"]
        for mode in ("mode=equal", "mode=mixed", "mode=equal,vfs=3")
    }
    # vm-a is placed again first; an A40 holds six of the size, or four
    # beside others, and each takes a virtual function.
    assert counts == {"mode=equal": 5, "mode=mixed": 3, "mode=equal,vfs=3": 2}


def test_nothing_is_written(site: test_fleet.Site) -> None:
    """The standin of Nova answers GET only, and the plan succeeds."""
    path = "/resource_providers"
    before = site.placement.call("GET", path)
    page = site.place / "plan.html"
    for words in (
        ("--flavor", "gpu.8q", "--html", str(page)),
        ("--flavor", "gpu.8q", "--add", "gpu=A100,mode=mig"),
    ):
        plan(site, *words)
        requests = site.placement.requests()
        assert requests and not any(r.is_write for r in requests)
    assert site.placement.call("GET", path) == before


class _Ids(html.parser.HTMLParser):
    """Collector of a page's ids and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_cards_after_and_before(site: test_fleet.Site) -> None:
    path = site.place / "plan.html"
    plan(
        site,
        "--flavor",
        "gpu.8q",
        "--count",
        "3",
        "--add",
        "gpu=A40",
        "--html",
        str(path),
    )
    page = _Ids()
    page.feed(path.read_text())
    assert len(page.ids) == len(set(page.ids))
    before = page.text.index("Hosts before it")
    after = page.text.index("Hosts after it")
    assert "gpu.8q 3" in page.text[after:before]
    projects = page.text.index("Projects", before)
    assert "planned" not in page.text[before:projects]
    assert "new-a40-1" in page.text[after:before]
    assert "new-a40-1" not in page.text[before:]
    assert "3 of 3" in page.text[:after]


def test_openstack_plans_on_a_cloud_and_without_one(
    site: test_fleet.Site,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("plan", "capacity", "--flavor", "gpu.8q")
    with identity.Identity(site.placement.url).running() as keystone:
        client = openstack_shell.OpenStack(
            site.placement.url,
            site.nova.url,
            f"{keystone.url}/v3",
            tmp_path,
            monkeypatch,
            capsys,
        )
        assert client.run("accel", *words) == site.execute(*words)
    (tmp_path / "clouds.yaml").unlink()
    root = look.make("l40s-vendor-vfio", tmp_path / "captured")
    status = shell.OpenStackShell().run(
        [
            *("accel", "plan", "capacity", "--from", str(root)),
            *("--profile", "L40S-24Q", "-f", "json"),
        ]
    )
    out, err = capsys.readouterr()
    assert status == 0, err
    assert json.loads(out)["requests"][0]["fits"]
    assert names.GPU_CLASS not in err
