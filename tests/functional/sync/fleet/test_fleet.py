# SPDX-License-Identifier: Apache-2.0
"""Commands about devices and their holders, with a real Placement."""

import datetime
import json
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.model import names
from placement_sync.fleet.cli import fleet_command
from tests.functional.sync.commands import programs
from tests.functional.sync.support import (
    captured_hosts,
    nova_standin,
    servers,
)
from tests.support import golden

A40_HOST = "a40-vf-mdev.example.org"
DOWN = "nova-compute of a40-vf-mdev is down, last report 3h ago"
CARD, T4 = "0000:41:00.0", "0000:3b:00.0"
VM = "aaaaaaaa-0000-4000-8000-00000000000a"
OTHER_VM = "bbbbbbbb-0000-4000-8000-00000000000b"
MOVE = "cccccccc-0000-4000-8000-00000000000c"
SPECS = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}
PART = {"VGPU": 1, names.GPU_MEMORY_CLASS: 8192}


class Site(captured_hosts.Cloud):
    """Two hosts: an A40 with two holders, and two T4, one of them drained."""

    nova: nova_standin.Nova
    card = ""
    root = ""

    def fill(self) -> "Site":
        """Restore the hosts in an empty Placement, or write them."""
        if not self.placement.restore("fleet"):
            self.report()
            self.placement.save("fleet")
        self.root = self.find(A40_HOST)
        self.card = names.provider_uuid(self.root, CARD)
        self.nova.add_server(VM, A40_HOST, "vm-a", **SPECS)
        self.nova.add_server(OTHER_VM, A40_HOST, "vm-b")
        return self

    def report(self) -> None:
        """Write both hosts and the holders to Placement."""
        root = self.add("a40-vf-mdev", VCPU=10, MEMORY_MB=65536, DISK_GB=99)
        card = names.provider_uuid(root, CARD)
        self.allocate(card, VM, **PART)
        self.allocate(card, MOVE, **PART)
        other = self.add("t4-mdev", MEMORY_MB=65536)
        self.drain(
            names.provider_uuid(other, T4), VGPU=16, CUSTOM_GPU_MEMORY_MB=16384
        )

    def lose(self) -> None:
        """Let the host of the A40 have reported three hours ago."""
        self.nova.add_host(self.root, A40_HOST)
        self.nova.down["a40-vf-mdev"] = _before(datetime.timedelta(hours=3))

    def read(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        """Return the rows of a command, as cliff prints them in JSON."""
        code, out, err = self.execute(*words, "-f", "json")
        assert code == status, err
        rows: list[dict[str, Any]] = json.loads(out)
        return rows

    def list_requests(self) -> list[str]:
        """Return the last parts of the paths of requests to Placement."""
        paths = [r.path.partition("?")[0] for r in self.placement.clear()]
        return sorted(path.rpartition("/")[2] for path in paths)


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    with nova_standin.serve() as nova:
        yield Site(placement, tmp_path, capsys, nova).fill()


def _before(age: datetime.timedelta) -> str:
    """Return a time as Nova prints it: UTC, without an offset."""
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return (now - age).isoformat()


LISTING = ["allocation_candidates", "resource_providers", "traits"]


def test_devices_with_state_use_and_room(site: Site) -> None:
    _, out, _ = site.execute("device", "list")
    # One request for the holders of the A40, one for the drained card.
    assert site.list_requests() == sorted(
        [*LISTING, "allocations", "inventories"]
    )
    golden.check(golden.PLACE / "fleet/device-list.txt", out)


def test_a_filter_costs_no_request_for_other_devices(site: Site) -> None:
    rows = site.read("device", "list", "--model", "T4", "--state", "ok")
    assert [row["Host"] for row in rows] == ["t4-mdev.example.org"]
    assert site.list_requests() == LISTING
    assert site.read("device", "list", "--host", "t4-mdev", "--free") == rows
    assert site.list_requests() == [*LISTING[:1], "inventories", *LISTING[1:]]
    assert site.read("device", "list", "--state", "missing") == []


def test_rows_for_programs_have_values(site: Site) -> None:
    row = site.read("device", "list", "--long", "--model", "A40")[0]
    assert row["In use"] == {"used": 16384, "total": 40960, "unit": "MB"}
    assert row["Still fits"] == [{"profile": "A40-8Q", "count": 3}]
    assert names.OWNER_TRAIT in row["Traits"]


def test_flat_formats_have_texts_and_numbers(site: Site) -> None:
    columns = [
        w for name in ("Mode", "In use", "Servers") for w in ("-c", name)
    ]
    _, out, _ = site.execute("device", "list", *columns, "-f", "csv")
    assert out.splitlines()[:2] == [
        '"Mode","In use","Servers"',
        '"equal","16384/40960 MB",2',
    ]
    fits = ("-c", "Still fits", "-c", "Host")
    _, out, _ = site.execute("device", "list", *fits, "-f", "value")
    assert out.splitlines()[0] == "a40-vf-mdev.example.org 3 x A40-8Q"
    show = ("device", "show", "0000:41:00.0", "-c", "inventories")
    _, out, _ = site.execute(*show, "-f", "shell")
    assert out.count("\n") == 1
    assert "VGPU: 2 of 5 used, 0 reserved" in out and "{" not in out


def read_profiles(site: Site, *words: str) -> list[dict[str, Any]]:
    cloud = captured_hosts.Cloud(site.placement, site.place, site.capsys)
    code, out, err = cloud.execute("profile", "list", *words, "-f", "json")
    assert code == 0, err
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


def test_a_value_that_is_not_known_is_null(site: Site) -> None:
    site.add("mtty")
    host = ("--host", "mtty")
    (row,) = site.read("device", "list", *host)
    assert (row["Mode"], row["Model"]) == (None, None)
    assert {row["Model"] for row in read_profiles(site, *host)} == {None}
    _, out, _ = site.execute("device", "list", *host)
    assert "| -     | ok" in out


def test_hosts_may_be_several(site: Site) -> None:
    site.add("mtty")
    nodes = ["a40-vf-mdev.example.org", "t4-mdev.example.org"]
    hosts = ("--host", "a40-vf-mdev", "--host", nodes[1])
    rows = site.read("device", "list", *hosts)
    assert sorted({row["Host"] for row in rows}) == nodes
    rows = read_profiles(site, *hosts)
    assert sorted({row["Hosts"] for row in rows}) == nodes
    specs = ("--extra-spec", "resources_GPU1:VGPU=1")
    rows = site.read("explain", *specs, *hosts)
    assert sorted({row["Host"] for row in rows}) == nodes
    code, _, err = site.execute("device", "list", *hosts, "--host", "nope")
    assert code == 2 and "'nope' is not a host" in err


@pytest.mark.parametrize(
    ("options", "width"), [((), 120), (("--max-width", "90"), 90)]
)
def test_one_device_is_shown_in_120_columns(
    site: Site, options: tuple[str, ...], width: int
) -> None:
    _, out, _ = site.execute("device", "show", "0000:41:00.0", *options)
    assert max(map(len, out.splitlines())) == width


def test_options_precede_the_command(site: Site) -> None:
    words = ("--endpoint", site.placement.url, "device", "list")
    assert programs.main(words) == 0
    assert site.capsys.readouterr().out.count("NVIDIA T4") == 2


def test_a_device_has_holders_by_name(site: Site) -> None:
    code, out, err = site.execute(
        "device", "show", f"a40-vf-mdev/{CARD}", "-f", "json"
    )
    assert code == 0, err
    device = json.loads(out)
    assert [each["server"] for each in device["holders"]] == ["vm-a", ""]
    assert device["inventories"]["VGPU"]["used"] == 2
    code, _, err = site.execute("device", "show", "0000:99:00.0")
    assert code == 2 and f"t4-mdev.example.org/{T4}" in err


def test_allocations_name_servers_in_one_listing(site: Site) -> None:
    paths: list[str] = []
    site.nova.before = paths.append
    rows = site.read("allocation", "list")
    assert {(r["Server"], *r["Profile"]) for r in rows} == {
        ("vm-a", "A40-8Q"),
        ("", ""),
    }
    assert {r["Server ID"] for r in rows} == {VM, MOVE}
    assert rows[0]["Units"] == PART
    assert paths == ["/servers/detail"]


def test_allocations_are_filtered(site: Site) -> None:
    for words, count in (
        (("--server", "vm-a"), 1),
        (("--server", VM), 1),
        (("--server", VM.replace("-", "").upper()), 1),
        (("--project", "p"), 1),
        (("--project", "other"), 0),
        (("--profile", "nvidia a40-8q"), 1),
        (("--device", f"a40-vf-mdev/{CARD}"), 2),
        (("--host", "t4-mdev"), 0),
    ):
        assert len(site.read("allocation", "list", *words)) == count, words


def test_allocations_of_a_server_read_only_its_cards(site: Site) -> None:
    assert site.read("allocation", "list", "--server", OTHER_VM) == []
    # Its allocations; the devices are listed, and none is read.
    assert site.list_requests() == sorted([*LISTING, OTHER_VM])


def test_a_server_name_is_one_of_the_own_project(site: Site) -> None:
    words = "allocation", "list", "--server"
    # Both have allocations; another project has a server of the same name.
    site.nova.add_server(MOVE, "a40-vf-mdev.example.org", "vm-a", **SPECS)
    code, _, err = site.execute(*words, "vm-a")
    assert code == 2 and "several servers have that name" in err
    site.nova.servers[MOVE]["tenant_id"] = "other"
    (row,) = site.read(*words, "vm-a")
    assert row["Server ID"] == VM
    site.nova.servers[MOVE]["name"] = "vm-c"
    code, _, err = site.execute(*words, "vm-c")
    assert code == 2 and "'vm-c' is not a server of your own" in err
    # A uuid is no name, as of a server that is named like a deleted one's.
    deleted = str(uuid.UUID(int=99))
    site.nova.servers[VM]["name"] = deleted
    assert site.read(*words, deleted) == []


def test_servers_that_nova_refuses_are_no_empty_list(site: Site) -> None:
    site.nova.refused = ("/servers",)
    code, out, err = site.execute("allocation", "list", "-f", "json")
    assert code == 1 and len(json.loads(out)) == 2
    assert "403 not you" in err and err.count("\n") == 1
    assert site.read("usage", "list", status=1)[0]["Project"] == ""
    _, out, _ = site.execute("usage", "list")
    assert "| (not known) |" in out


def test_hosts_and_projects_are_sums(site: Site) -> None:
    hosts = site.read("host", "list")
    assert [(h["Devices"], h["States"]) for h in hosts] == [
        (1, {"ok": 1}),
        (2, {"ok": 1, "drained": 1}),
    ]
    assert hosts[0]["In use"] == [
        {"used": 16384, "total": 40960, "unit": "MB"}
    ]
    assert site.read("usage", "list", "--project", "p") == [
        {
            "Project": "p",
            "Resource class": name,
            "Units": units,
            "Servers": 1,
            "Devices": 1,
        }
        for name, units in sorted(PART.items())
    ]


def test_the_capacity_for_a_flavor(site: Site) -> None:
    site.nova.add_flavor("gpu.8q", **SPECS)
    words = "capacity", "show", "--flavor", "gpu.8q", "-f", "json"
    code, out, err = site.execute(*words)
    assert code == 0, err
    node = "a40-vf-mdev.example.org"
    capacity = json.loads(out)
    blocked = capacity.pop("blocked_by")
    assert blocked == {"of another model": 2}
    # Three parts are free on the card, and there are CPUs for two servers.
    assert capacity == {
        "flavor": "gpu.8q",
        "flavor_id": "gpu.8q",
        "fits_now": 2,
        "largest_group_on_one_host": 2,
        "hosts": {node: 2},
    }
    site.drain(site.card, VGPU=5, CUSTOM_GPU_MEMORY_MB=40960)
    code, out, _ = site.execute(*words)
    assert code == 1 and json.loads(out)["fits_now"] == 0


def test_the_report_has_reserved_units_and_flavors(site: Site) -> None:
    site.nova.add_flavor("gpu.8q", **SPECS)
    code, out, err = site.execute("report", "--format", "json")
    assert (code, err) == (0, "")
    # Totals and holders are read once for each card.
    assert site.list_requests().count("allocations") == 1
    report = json.loads(out)
    assert report["states"] == {"ok": 2, "drained": 1}
    assert report["not_known"] == []
    assert [(f["name"], f["room"]) for f in report["flavors"]] == [
        ("gpu.8q", 2)
    ]
    drained = report["hosts"][1]["devices"][0]
    assert [part["kind"] for part in drained["parts"]] == ["reserved"]
    code, out, _ = site.execute("report", "-o", str(site.place / "page.html"))
    assert code == 0 and "2 hosts, 3 devices" in out
    assert "vm-a" in (site.place / "page.html").read_text()
    site.nova.refused = ("/flavors",)
    _, out, _ = site.execute("report", "--format", "text")
    assert "Not known: flavors (" in out


def test_servers_are_counted_for_some_devices_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large fleet costs three requests unless all are asked for."""
    monkeypatch.setattr(fleet_command, "MOST_COUNTED", 0)
    rows = site.read("device", "list", "--model", "A40")
    assert [row["Servers"] for row in rows] == [None]
    assert site.list_requests() == LISTING
    code, out, _ = site.execute("host", "list")
    assert code == 0 and "--servers counts them" in out
    for words, counts in (
        (("device", "list", "--model", "A40"), [2]),
        (("host", "list"), [2, 0]),
    ):
        rows = site.read(*words, "--servers")
        assert [row["Servers"] for row in rows] == counts


def test_a_host_that_is_down_is_listed_with_the_age_of_its_report(
    site: Site,
) -> None:
    site.lose()
    stale, other = site.read("host", "list")
    assert stale["States"] == {"stale": 1}
    assert not stale["Last report"]["is_up"]
    assert other["Last report"] is None
    _, out, _ = site.execute("host", "list")
    assert "| stale, 3h ago |" in out and "| unknown " in out


def test_a_host_that_reports_is_not_stale(site: Site) -> None:
    site.nova.add_host(site.root, A40_HOST)
    _, out, _ = site.execute("host", "list")
    assert "1 ok" in out and "| 0m ago " in out


def test_a_host_that_never_reported_is_stale(site: Site) -> None:
    site.lose()
    site.nova.down["a40-vf-mdev"] = None
    _, out, _ = site.execute("host", "list")
    assert "| stale, never |" in out


def test_devices_of_a_host_that_is_down_are_stale(site: Site) -> None:
    site.lose()
    _, out, _ = site.execute("device", "list", "--model", "A40")
    assert "| stale |" in out and "| last report 3h ago |" in out
    (row,) = site.read("device", "list", "--state", "stale")
    assert (row["Host"], row["Still fits"]) == (A40_HOST, [])
    rows = site.read("device", "list", "--free")
    assert [row["Host"] for row in rows] == ["t4-mdev.example.org"]


def test_a_state_of_a_device_stays_when_its_host_is_lost(site: Site) -> None:
    site.drain(site.card, VGPU=5, CUSTOM_GPU_MEMORY_MB=40960)
    site.lose()
    _, out, _ = site.execute("device", "list", "--state", "drained")
    assert "; last report 3h ago |" in out


def test_no_server_fits_on_a_host_that_is_down(site: Site) -> None:
    site.lose()
    site.nova.add_flavor("gpu.8q", **SPECS)
    code, out, _ = site.execute("explain", "gpu.8q", "-f", "json")
    assert code == 1
    assert {"Verdict": "left out", "Why": DOWN}.items() <= json.loads(out)[
        0
    ].items()
    words = "capacity", "show", "--flavor", "gpu.8q", "-f", "json"
    code, out, _ = site.execute(*words)
    assert code == 1 and DOWN in json.loads(out)["blocked_by"]


def test_the_report_has_the_host_that_is_down_as_a_problem(
    site: Site,
) -> None:
    site.lose()
    _, out, _ = site.execute("report", "--format", "text")
    assert f"{A40_HOST}, stale" in out
    assert f"  {A40_HOST}: {DOWN}: its devices are shown" in out
    site.execute("report", "-o", str(site.place / "page.html"))
    page = (site.place / "page.html").read_text()
    assert "1 host stale" in page and DOWN in page


def test_a_report_has_no_heading_of_nothing(site: Site) -> None:
    _, out, _ = site.execute("report", "--format", "text", "--model", "T4")
    assert "\nProblems\n" in out
    assert "\nFlavors" not in out and "\nHolders by project" not in out


FAULT = "Xid 79: it has fallen off its bus"


def fail(site: Site) -> None:
    """Let the A40 have a fault, as its host reports it."""
    traits = {names.FAULTED_TRAIT, f"{names.FAULT_PREFIX}XID_79"}
    site.mark(site.card, *traits)
    site.set_inventories(site.card, VGPU=-5, CUSTOM_GPU_MEMORY_MB=-40960)


def test_a_faulted_device_has_the_cause(site: Site) -> None:
    fail(site)
    _, out, _ = site.execute("device", "list", "--state", "faulted")
    assert f"| {FAULT} |" in out
    code, out, _ = site.execute("device", "show", CARD, "-f", "json")
    assert code == 0 and json.loads(out)["fault"] == FAULT
    _, out, _ = site.execute("report", "--format", "text")
    assert f"faulted: {FAULT}, 2 servers" in out
    site.nova.add_flavor("gpu.8q", **SPECS)
    _, out, _ = site.execute("explain", "gpu.8q")
    assert f"at fault, {FAULT}" in out


def test_a_faulted_device_of_an_earlier_release_names_the_command(
    site: Site,
) -> None:
    site.mark(site.card, names.FAULTED_TRAIT)
    _, out, _ = site.execute("device", "list", "--state", "faulted")
    assert "`nova-accel inspect` on its host prints the cause" in out


PCI_IDS = """\
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t74a1  Aqua Vanjaram [Instinct MI300X]
8086  Intel Corporation
\t56c0  ATS-M [Data Center GPU Flex 170]
"""


def test_cards_have_the_names_that_their_host_has_for_them(
    site: Site,
) -> None:
    site.add("amd-vf", PCI_IDS, MEMORY_MB=65536)
    site.add("intel-vf", PCI_IDS, MEMORY_MB=65536)
    rows = site.read("device", "list", "--model", "Instinct MI300X")
    assert {row["Model"] for row in rows} == {"AMD INSTINCT MI300X"}
    rows = site.read("device", "list", "--host", "intel-vf")
    assert "INTEL DATA CENTER GPU FLEX 170" in {row["Model"] for row in rows}
    rows = site.read("profile", "list", "--all", "--model", "instinct mi300x")
    assert {row["Model"] for row in rows} == {"AMD INSTINCT MI300X"}


def test_a_flavor_requires_the_id_of_a_card_with_a_name(site: Site) -> None:
    site.add("amd-vf", PCI_IDS, MEMORY_MB=65536)
    rows = site.read("profile", "list", "--all", "--model", "instinct mi300x")
    words = "flavor", "create", "f", "--vcpus", "1", "--ram", "1", "--disk"
    code, out, err = site.execute(
        *(*words, "1", "--dry-run", "--profile", rows[0]["Profile"]),
        *("--model", "instinct mi300x"),
    )
    assert code == 0, err
    assert "CUSTOM_ACCELERATOR_DEVICE_1002_74A1" in out
    assert names.NAME_PREFIX not in out


def test_a_profile_outside_the_catalog_is_named_while_its_card_is_full(
    site: Site,
) -> None:
    root = site.add("intel-vf", MEMORY_MB=65536)
    words = "profile", "list", "--all", "--host", "intel-vf", "--long"
    rows = [r for r in site.read(*words) if r["Kind"] == "GPU VF"]
    profile, trait = rows[0]["Profile"], rows[0]["Traits"]
    for device in site.read("device", "list", "--host", "intel-vf", "--long"):
        if trait in device["Traits"]:
            site.replace_trait(
                device["Device ID"], trait, names.supported_trait(trait)
            )
    (row,) = [r for r in site.read(*words) if r["Profile"] == profile]
    assert (row["Offered"], row["Free"], row["Traits"]) == (False, 0, trait)
    code, out, err = site.execute(
        *("flavor", "create", "f", "--vcpus", "1", "--ram", "1", "--disk"),
        *("1", "--dry-run", "--profile", profile),
    )
    assert code == 0 and root, err
    assert f"{trait}=required" in out.replace(" ", "") or trait in out
