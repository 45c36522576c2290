# SPDX-License-Identifier: Apache-2.0
"""``nova-accel doctor --cloud`` with a real Placement and a fake Nova."""

import json
import pathlib
import subprocess
import sys
import uuid
from typing import Any

import pytest

from nova_accel.model import names
from tests.benchmark import clouds
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import nova_standin, servers

RUN = """
import sys
from nova_accel.cli import commands
sys.exit(commands.main())
"""
NEW, OLD = ("580.95.02", 10002001), ("570.172.08", 9002000)
PASSWORD = "s3cret-of-the-bus"  # noqa: S105


def add_host(placement: servers.Server, name: str, driver: str) -> str:
    """Create a compute node with one card, and return its uuid."""
    root, card = str(uuid.uuid4()), str(uuid.uuid4())
    call = placement.call
    call("POST", "/resource_providers", {"name": name, "uuid": root})
    call(
        "POST",
        "/resource_providers",
        {
            "name": names.provider_name(name, "0000:41:00.0"),
            "uuid": card,
            "parent_provider_uuid": root,
        },
    )
    traits = [names.OWNER_TRAIT, names.driver_trait("10de", driver)]
    for trait in traits:
        call("PUT", f"/traits/{trait}")
    body = {"resource_provider_generation": 0, "traits": traits}
    call("PUT", f"/resource_providers/{card}/traits", body)
    inventories = {"VGPU": {"total": 4}}
    body = {"resource_provider_generation": 1, "inventories": inventories}
    call("PUT", f"/resource_providers/{card}/inventories", body)
    return root


def write_conf(
    conf: pathlib.Path, placement: str, compute: str, options: str
) -> None:
    conf.write_text(
        f"[DEFAULT]\ntransport_url = rabbit://a:{PASSWORD}@127.0.0.1:1/\n"
        f"[placement]\nauth_type = admin_token\nendpoint = {placement}\n"
        "token = admin\n"
        f"[nova]\nauth_type = admin_token\nendpoint = {compute}\n"
        "token = admin\n"
        f"{options}"
    )


def run_doctor(
    tmp_path: pathlib.Path, placement: str, compute: str, options: str = ""
) -> dict[str, tuple[str, str]]:
    """Return verdict and texts of the cloud's checks that are not ok."""
    conf = tmp_path / "nova.conf"
    write_conf(conf, placement, compute, options)
    completed = subprocess.run(  # noqa: S603 - our own words
        [
            *(sys.executable, "-W", "ignore", "-c", RUN),
            *("doctor", "--cloud", "--only", "cloud"),
            *("-f", "json", "--config-file", str(conf)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert PASSWORD not in completed.stdout + completed.stderr
    report: dict[str, Any] = json.loads(completed.stdout)
    return {
        check["id"]: (
            check["verdict"],
            "; ".join(finding["text"] for finding in check["findings"]),
        )
        for check in report["checks"]
        if check["verdict"] != "ok"
    }


def test_services_that_are_away_fail(tmp_path: pathlib.Path) -> None:
    away = "http://127.0.0.1:1"
    results = run_doctor(tmp_path, away, away)
    assert results["cloud.placement"][0] == "fail"
    assert results["cloud.compute-api"][0] == "warn"
    assert results["cloud.message-bus"][0] == "fail"
    assert "127.0.0.1:1 can't be reached" in results["cloud.message-bus"][1]


@pytest.mark.long
def test_flavors_without_memory_nodes_are_named(
    placement: servers.Server, tmp_path: pathlib.Path
) -> None:
    trait = {"trait_GPU1:CUSTOM_GPU_PCI_10DE_2941": "required"}
    nodes = {"accelerator:memory_nodes": "8"}
    with nova_standin.serve() as nova:
        nova.add_flavor("bare", **trait)
        nova.add_flavor("ready", **trait, **nodes)
        nova.add_flavor("other")
        results = run_doctor(tmp_path, placement.url, nova.url)
    assert results["cloud.memory-nodes"] == (
        "warn",
        "flavor bare has no accelerator:memory_nodes",
    )


def test_flavors_with_traits_that_cards_lack_are_named(
    placement: servers.Server, tmp_path: pathlib.Path
) -> None:
    wide = {"resources_GPU1:VGPU": "1"}
    with nova_standin.serve() as nova:
        nova.add_flavor(
            "former",
            **wide,
            **{
                "trait_GPU1:CUSTOM_ACCELERATOR_VENDOR_NVIDIA": "required",
                "trait_GPU1:HW_GPU_API_VULKAN": "required",
            },
        )
        nova.add_flavor("plain", **{"trait:HW_GPU_API_VULKAN": "required"})
        nova.add_flavor(
            "present",
            **wide,
            **{"trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required"},
        )
        results = run_doctor(tmp_path, placement.url, nova.url)
    assert results["cloud.flavor-traits"] == (
        "warn",
        "flavor former requires CUSTOM_ACCELERATOR_VENDOR_NVIDIA,"
        " HW_GPU_API_VULKAN",
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "verdict"), [(1, "warn"), (2, "note"), (4, "")]
)
def test_more_cards_than_candidates_are_noted(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    limit: int,
    verdict: str,
) -> None:
    list(clouds.Cloud(placement, clouds.accel_layout(2)).fill(2))
    options = f"[scheduler]\nmax_placement_results = {limit}\n"
    with nova_standin.serve() as nova:
        results = run_doctor(tmp_path, placement.url, nova.url, options)
    text = (
        "2 hosts have 4 providers of VGPU, and nova-scheduler asks for"
        f" {limit} candidates"
    )
    expected = (verdict, text) if verdict else None
    assert results.get("cloud.candidate-limit") == expected


def test_hosts_that_differ(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("nova_accel.discovery.nova_conf.CONFIG_FILES", ())
    conf = tmp_path / "nova.conf"
    with nova_standin.serve() as nova:
        for name, (driver, version) in {
            "node1": NEW,
            "node2": NEW,
            "node3": OLD,
        }.items():
            nova.add_host(add_host(placement, name, driver), name)
            nova.hypervisors[-1]["hypervisor_version"] = version
        write_conf(
            conf,
            placement.url,
            nova.url,
            "[scheduler]\nmax_placement_results = 1\n",
        )
        written = transcript.Transcript(capsys, {str(tmp_path): "DIRECTORY"})
        written.run("doctor --cloud --only cloud")
        rpc = "placement_sync.fleet.compute_rpc"
        monkeypatch.setitem(sys.modules, rpc, None)
        written.run(f"doctor --cloud --only cloud --config-file {conf}")
    written.check("doctor of the cloud")


def test_hosts_of_one_release(
    placement: servers.Server, tmp_path: pathlib.Path
) -> None:
    with nova_standin.serve() as nova:
        for name in ("node1", "node2", "node3"):
            nova.add_host(add_host(placement, name, NEW[0]), name)
            nova.hypervisors[-1]["hypervisor_version"] = NEW[1]
        paths: list[str] = []
        nova.before = paths.append
        results = run_doctor(tmp_path, placement.url, nova.url)
    # One to see whether Nova answers, and the two pages of one listing.
    assert paths.count("/os-hypervisors/detail") == 3
    del results["cloud.message-bus"]
    assert results == {}
