# SPDX-License-Identifier: Apache-2.0
"""Command audit with real Placement, libvirt and mdevs, and HTTP to Nova."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import libvirt
import pytest

from nova_accel.host.execute import privileged
from nova_accel.host.state import claims_file
from nova_accel.model import names
from tests.functional.sync.support import nova_standin, servers
from tests.functional.sync.support.audit_site import (
    CARD,
    DEAD,
    MOVE,
    NO_SERVER,
    PRESENT,
    SECOND,
    UNSURE,
    A,
    Site,
    break_paths,
    mdev,
)
from tests.lab import fakehost
from tests.support.hosts import simulated
from tests.support.hosts.simulated import GPU, ROOT

privsep: Any = vars(privileged)["privsep"]
Findings = list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def _mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("host")
    with fakehost.simulated_sysfs(simulated.SPEC, root) as controller:
        yield controller


@pytest.fixture
def hypervisor() -> Iterator[Any]:
    connected = libvirt.open("test:///default")
    for domain in connected.listAllDomains(0):
        if domain.isActive():
            domain.destroy()
        domain.undefine()
    yield connected
    for domain in connected.listAllDomains(0):
        domain.destroy()
        domain.undefine()
    connected.close()


@pytest.fixture
def site(
    _mounted: fakehost.Controller,
    placement: servers.Server,
    hypervisor: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    _mounted.heal()
    _mounted.reboot()
    config = tmp_path / "nova.conf"
    config.write_text(
        f"[nova_accel]\nroot = {_mounted.root}\n"
        f"state_dir = {tmp_path}/state\ndrivers = nvidia_mdev, mdev\n"
        "[libvirt]\nconnection_uri = test:///default\n"
    )
    with nova_standin.serve() as nova:
        nova.add_host(ROOT.uuid, ROOT.name)
        new_site = Site(
            kernel=_mounted,
            placement=placement,
            nova=nova,
            libvirt=hypervisor,
            claims=claims_file.ClaimsFile(f"{tmp_path}/state"),
            config=config,
            capsys=capsys,
        )
        new_site.claims.write(ROOT, (), ())
        privileged.run_here()
        if not placement.restore("audit"):
            report_host(new_site)
            placement.save("audit")
        yield new_site
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(True)


def report_host(site: Site) -> None:
    """Create the compute node in Placement, and the providers below it."""
    site.placement.call(
        "POST", "/resource_providers", {"name": ROOT.name, "uuid": ROOT.uuid}
    )
    site.placement.call(
        "PUT",
        f"/resource_providers/{ROOT.uuid}/inventories",
        {
            "resource_provider_generation": 0,
            "inventories": {
                "VCPU": {"total": 64},
                "MEMORY_MB": {"total": 65536},
                "DISK_GB": {"total": 1024},
            },
        },
    )
    status, *words = site.execute("run", "--once")
    assert status == 0, words


def kinds(findings: Sequence[dict[str, Any]]) -> Findings:
    return [
        (each["kind"], each["provider"], each["consumer"] or each["handle"])
        for each in findings
    ]


LEAK = ("leaked-allocation", CARD, NO_SERVER)
ORPHAN = ("orphan-mdev", CARD, mdev("slot-5"))


def test_a_host_in_order(site: Site) -> None:
    site.start(A, "slot-0")
    report = site.run(status=0)
    assert report["findings"] == report["unchecked"] == []
    assert report["host"] == {"name": ROOT.name, "uuid": ROOT.uuid}
    site.placement.clear()
    assert site.run("--heal", status=0)["mended"] == []
    assert not any(each.is_write for each in site.placement.requests())


def test_a_leaked_allocation_is_deleted(site: Site) -> None:
    site.start(A, "slot-0")
    site.allocate(NO_SERVER, CARD, SECOND, VCPU=2)
    report = site.run(status=1)
    second = ("leaked-allocation", SECOND, NO_SERVER)
    assert set(kinds(report["findings"])) == {LEAK, second}
    assert {each["heals"] for each in report["findings"]} == {True}
    before = site.amounts(A)

    report = site.run("--heal", status=0)
    assert set(kinds(report["mended"])) == {LEAK, second}
    assert report["log"].count("Deleted leaked allocation") == 2
    allocations = site.read_allocations(NO_SERVER)
    assert allocations["allocations"].keys() == {ROOT.uuid}
    assert allocations["consumer_type"] == "INSTANCE"
    assert (allocations["project_id"], allocations["user_id"]) == ("p", "u")
    assert site.amounts(A) == before


def test_an_allocation_of_another_service_is_retained(site: Site) -> None:
    """A consumer of a type that is not Nova's is not leaked by Nova."""
    site.allocate(NO_SERVER, CARD, kind="RESERVATION")
    report = site.run("--heal", status=1)
    assert "type RESERVATION" in report["left"][0]["left"]
    assert site.amounts(NO_SERVER) == {CARD: {"VGPU": 1}}


UNALLOCATED = ("missing-allocation", CARD, A)


def test_a_claim_without_an_allocation_is_allocated(site: Site) -> None:
    site.start(A, "slot-0")
    site.remove_allocation(A)
    report = site.run(status=1)
    [finding] = report["findings"]
    assert kinds([finding]) == [UNALLOCATED]
    assert finding["heals"]
    assert finding["mend"].startswith(
        "openstack --os-placement-api-version 1.28 resource provider"
        " allocation set --project-id p --user-id u "
    )
    assert f"--allocation rp={ROOT.uuid},VCPU=1 " in finding["mend"]
    assert f"--allocation rp={CARD},VGPU=1 " in finding["mend"]

    assert kinds(site.run("--heal", status=0)["mended"]) == [UNALLOCATED]
    allocations = site.read_allocations(A)
    assert site.amounts(A) == {ROOT.uuid: {"VCPU": 1}, CARD: {"VGPU": 1}}
    assert (allocations["project_id"], allocations["user_id"]) == ("p", "u")
    assert allocations["consumer_type"] == "INSTANCE"


def test_units_reserved_for_a_claim_are_allocated(
    site: Site,
) -> None:
    """All other units of the card are allocated."""
    site.start(A, "slot-0")
    site.remove_allocation(A)
    [claim] = site.claims.read().claims
    lost = dataclasses.replace(claim, is_allocated=False)
    site.claims.write(ROOT, [lost], ())
    assert site.execute("run", "--once")[0] == 0
    path = f"/resource_providers/{CARD}/inventories"
    record = site.placement.call("GET", path)["inventories"]["VGPU"]
    assert record["reserved"] == 1
    full = record["total"] - 1
    site.nova.add_server(NO_SERVER, "")
    site.placement.call(
        "PUT",
        f"/allocations/{NO_SERVER}",
        {
            "allocations": {CARD: {"resources": {"VGPU": full}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "INSTANCE",
            "consumer_generation": None,
        },
    )
    [finding] = site.run(status=1)["findings"]
    assert (
        f"inventory set --amend --resource VGPU:reserved=0 {CARD} && "
    ) in finding["mend"]
    assert kinds(site.run("--heal", status=0)["mended"]) == [UNALLOCATED]
    assert site.amounts(A)[CARD] == {"VGPU": 1}
    record = site.placement.call("GET", path)["inventories"]["VGPU"]
    assert (record["reserved"], record["max_unit"]) == (0, full + 1)


@pytest.mark.parametrize(
    ("volume", "disk_gb"),
    [("/dev/vdb", 20 + 10 + 2), (nova_standin.ROOT_DEVICE, 10 + 2)],
)
def test_a_server_without_allocations_gets_all_again(
    site: Site, volume: str, disk_gb: int
) -> None:
    site.start(A, "slot-0")
    site.nova.volumes[A] = [volume]
    site.allocate(A, CARD, VCPU=4, MEMORY_MB=2048, DISK_GB=disk_gb)
    before = site.amounts(A)
    site.remove_allocation(A, is_all=True)
    [finding] = site.run(status=1)["findings"]
    assert kinds([finding]) == [UNALLOCATED]
    node = f"rp={ROOT.uuid},DISK_GB={disk_gb},MEMORY_MB=2048,VCPU=4"
    for part in ("--project-id p --user-id u", node, f"rp={CARD},VGPU=1"):
        assert f" {part} " in finding["mend"]
    report = site.run("--heal", status=0)
    assert kinds(report["mended"]) == [UNALLOCATED]
    assert f"4 VCPU of compute node {ROOT.name}" in report["log"]
    assert site.amounts(A) == before
    allocations = site.read_allocations(A)
    assert (allocations["project_id"], allocations["user_id"]) == ("p", "u")


UNKNOWN_AMOUNTS: dict[str, Callable[[Site], object]] = {
    "does not show its flavor": lambda site: site.nova.servers[A].update(
        flavor={}
    ),
    "its root disk is a volume": break_paths(f"/servers/{A}/"),
}


@pytest.mark.parametrize("reason", UNKNOWN_AMOUNTS)
def test_unknown_node_amounts_are_not_allocated(
    site: Site, reason: str
) -> None:
    site.start(A, "slot-0")
    site.remove_allocation(A, is_all=True)
    UNKNOWN_AMOUNTS[reason](site)
    site.placement.clear()
    [finding] = site.run("--heal", status=1)["findings"]
    assert kinds([finding]) == [UNALLOCATED]
    assert not finding["heals"]
    assert reason in finding["mend"]
    assert not any(each.is_write for each in site.placement.requests())


def set_server(**fields: str) -> Callable[[Site], None]:
    return lambda site: site.nova.servers[A].update(
        {name.replace("__", ":"): value for name, value in fields.items()}
    )


UNPROVED: dict[str, Callable[[Site], object]] = {
    "built": set_server(status="BUILD"),
    "resized": set_server(status="VERIFY_RESIZE"),
    "at work": set_server(**{"OS-EXT-STS__task_state": "deleting"}),
    "elsewhere": lambda site: site.nova.add_server(A, "elsewhere"),
    "gone": lambda site: site.nova.servers.pop(A),
    "moved": lambda site: site.nova.add_move(MOVE, A, "migrating", ROOT.name),
    "no servers": break_paths("/servers"),
    "no migrations": break_paths("/os-migrations"),
    "no claims file": lambda site: Path(site.claims.path).unlink(),
    "another Nova": lambda site: site.nova.hypervisors.clear(),
}


@pytest.mark.parametrize(
    "is_all", [False, pytest.param(True, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("how", UNPROVED)
def test_an_unproved_server_gets_no_allocation(
    site: Site, how: str, is_all: bool
) -> None:
    site.start(A, "slot-0")
    site.remove_allocation(A, is_all=is_all)
    UNPROVED[how](site)
    site.placement.clear()
    report = site.run("--heal")
    assert UNALLOCATED not in kinds(report["findings"])
    assert not any(each.is_write for each in site.placement.requests())


@pytest.mark.parametrize("is_all", [False, True])
def test_allocations_of_a_failed_move_return(site: Site, is_all: bool) -> None:
    site.start(A, "slot-0")
    before = site.amounts(A)
    site.remove_allocation(A, is_all=is_all)
    site.allocate(MOVE, CARD, VCPU=1)
    site.nova.add_move(MOVE, A, "error", ROOT.name)
    healed = site.run("--heal", status=0)["mended"]
    assert kinds(healed) == [("unreverted-move", CARD, MOVE)]
    assert (site.amounts(A), site.amounts(MOVE)) == (before, {})


def test_a_consumer_is_deleted_with_its_last_allocation(site: Site) -> None:
    site.allocate(NO_SERVER, CARD)
    site.run("--heal", status=0)
    assert site.read_allocations(NO_SERVER) == {"allocations": {}}


def test_only_an_orphan_is_removed(site: Site) -> None:
    site.start(A, "slot-0")
    site.make("slot-5")
    assert kinds(site.run(status=1)["findings"]) == [ORPHAN]
    report = site.run("--heal", status=0)
    assert kinds(report["mended"]) == [ORPHAN]
    assert site.kernel.mdevs().keys() == {mdev("slot-0")}
    assert mdev("slot-5") in report["log"]


def test_an_orphan_is_removed_with_its_leak(site: Site) -> None:
    site.allocate(NO_SERVER, CARD)
    site.make("slot-5")
    healed = site.run("--heal", status=0)["mended"]
    assert kinds(healed) == [LEAK, ORPHAN]
    assert site.kernel.mdevs() == {}


def test_a_spawn_in_progress_is_no_orphan(site: Site) -> None:
    """Nova-compute has not published its claim yet."""
    site.nova.add_server(A, "")
    site.allocate(A, CARD)
    site.make("slot-5")
    assert site.run("--heal", status=0)["findings"] == []
    assert mdev("slot-5") in site.kernel.mdevs()


def test_a_host_that_is_gone(site: Site) -> None:
    """Its free providers are deleted, parts first; one in use remains."""
    for name, uuid, parent in (
        ("dead", DEAD, None),
        ("dead_accel_card", MOVE, DEAD),
        ("dead_accel_card_region_0", NO_SERVER, MOVE),
        ("dead_accel_other", A, DEAD),
    ):
        site.placement.call(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": uuid, "parent_provider_uuid": parent},
        )
        trait = "COMPUTE_NODE" if parent is None else names.OWNER_TRAIT
        site.placement.call(
            "PUT",
            f"/resource_providers/{uuid}/traits",
            {"resource_provider_generation": 0, "traits": [trait]},
        )
    site.placement.call(
        "PUT",
        f"/resource_providers/{A}/inventories",
        {
            "resource_provider_generation": 1,
            "inventories": {"VGPU": {"total": 1}},
        },
    )
    site.allocate(A, A)
    site.nova.services.append("new-host")
    report = site.run(status=0)
    assert {each["source"] for each in report["unchecked"]} == {
        "hypervisors of Nova's API"
    }
    site.nova.services.remove("new-host")

    report = site.run("--heal", status=1)
    assert kinds(report["findings"]) == [("gone-host", A, "")]
    assert [each["provider"] for each in report["mended"]] == [NO_SERVER, MOVE]
    assert not report["findings"][0]["heals"]


# -- unproved findings ----------------------------------------------------


@pytest.mark.parametrize("how", [*PRESENT, *UNSURE])
def test_an_unproved_finding_is_not_healed(site: Site, how: str) -> None:
    """Neither the allocation is deleted, nor the mdev that it may be for."""
    site.allocate(NO_SERVER, CARD)
    site.make("slot-5")
    (PRESENT | UNSURE)[how](site)
    site.placement.clear()
    report = site.run("--heal")
    assert report["mended"] == []
    assert not any(each.is_write for each in site.placement.requests())
    assert site.read_allocations(NO_SERVER)["allocations"]
    assert mdev("slot-5") in site.kernel.mdevs()
    assert bool(report["unchecked"]) == (how in UNSURE)


def test_a_server_created_during_the_audit(site: Site) -> None:
    """The second read, right before the change, returns the server."""
    site.allocate(NO_SERVER, CARD)
    site.make("slot-5")
    paths: list[str] = []

    def before(path: str) -> None:
        paths.append(path)
        if paths.count("/os-migrations") == 2:
            site.nova.add_server(NO_SERVER, ROOT.name)

    site.nova.before = before
    report = site.run("--heal")
    assert report["mended"] == []
    assert report["left"][0]["left"].endswith("does not confirm it")
    assert site.read_allocations(NO_SERVER)["allocations"]
    assert mdev("slot-5") in site.kernel.mdevs()


def test_an_allocation_changed_during_the_audit(site: Site) -> None:
    """Placement refuses: the consumer has another generation."""
    site.allocate(NO_SERVER, CARD)
    paths: list[str] = []

    def before(path: str) -> None:
        paths.append(path)
        if paths.count(f"/servers/{NO_SERVER}") == 2:
            site.allocate(NO_SERVER, CARD, VCPU=4)

    site.nova.before = before
    report = site.run("--heal", status=1)
    assert " 409 " in report["left"][0]["left"]
    assert site.read_allocations(NO_SERVER)["allocations"].keys() == {
        CARD,
        ROOT.uuid,
    }


def test_a_claim_created_during_the_audit(site: Site) -> None:
    """The mdev of a server with the orphan's slot has the same uuid."""
    site.make("slot-5")
    paths: list[str] = []

    def before(path: str) -> None:
        paths.append(path)
        if paths.count("/servers/detail") == 2:
            site.claim(A, "slot-5")

    site.nova.before = before
    report = site.run("--heal", status=0)
    assert report["mended"] == report["findings"] == []
    assert report["left"][0]["left"] == "a server has claimed it just now"
    assert mdev("slot-5") in site.kernel.mdevs()


# -- findings without heal --------------------------------------------------


def test_a_server_on_another_host(site: Site) -> None:
    site.nova.add_server(A, "compute-2")
    site.allocate(A, CARD)
    report = site.run("--heal", status=1)
    assert kinds(report["findings"]) == [("duplicate", CARD, A)]
    site.nova.add_move(MOVE, A, "done", ROOT.name)
    assert site.run(status=0)["findings"] == []


def test_a_captured_host_is_not_mixed_with_this_machine(
    site: Site,
) -> None:
    site.make("slot-5")
    root = str(site.kernel.root)
    status, out, _ = site.execute("audit", "-f", "json", f"--root={root}")
    report = json.loads(out)
    assert (status, report["findings"]) == (0, [])
    reasons = {each["source"]: each["reason"] for each in report["unchecked"]}
    assert "--connect" in reasons["domains of libvirt"]
    source = "claims that nova-compute has published"
    assert "--state-dir" in reasons[source]
    site.define(A)
    report = site.run(
        "--heal",
        f"--root={root}",
        "--connect=test:///default",
        f"--state-dir={Path(site.claims.path).parent}",
    )
    assert report["mended"] == []
    assert "not one of this machine" in report["left"][0]["left"]


def test_an_invalid_option(site: Site) -> None:
    status, _, err = site.execute("audit", "--host-uuid=no")
    assert status == 2
    assert len(err.splitlines()) == 1


OTHER_NODE = "22222222-2222-4222-8222-222222222222"


def nest_another_host(site: Site) -> str:
    """Give another compute node a parent; return the provider of its card."""
    call = site.placement.call
    card = names.provider_uuid(OTHER_NODE, GPU)
    call(
        "POST",
        "/resource_providers",
        {
            "name": "other-host",
            "uuid": OTHER_NODE,
            "parent_provider_uuid": ROOT.uuid,
        },
    )
    call(
        "POST",
        "/resource_providers",
        {
            "name": names.provider_name("other-host", GPU),
            "uuid": card,
            "parent_provider_uuid": OTHER_NODE,
        },
    )
    call(
        "PUT",
        f"/resource_providers/{card}/inventories",
        {
            "resource_provider_generation": 0,
            "inventories": {"VGPU": {"total": 4}},
        },
    )
    call(
        "PUT",
        f"/resource_providers/{card}/traits",
        {"resource_provider_generation": 1, "traits": [names.OWNER_TRAIT]},
    )
    site.nova.add_host(OTHER_NODE, "other-host")
    return card


def test_a_host_below_this_one_is_not_audited(site: Site) -> None:
    card = nest_another_host(site)
    site.nova.add_server(A, "other-host")
    site.allocate(A, card)

    report = site.run()

    for each in report["findings"]:
        print(each["kind"], each["where"], each["reason"], "=>", each["mend"])
    assert report["findings"] == []


def test_heal_deletes_nothing_of_another_host(site: Site) -> None:
    """Only that host has its claims and domains."""
    card = nest_another_host(site)
    site.allocate(NO_SERVER, card)
    site.run("--heal")
    assert site.amounts(NO_SERVER) == {card: {"VGPU": 1}}
