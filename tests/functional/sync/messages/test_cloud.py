# SPDX-License-Identifier: Apache-2.0
"""Messages of the commands about the cloud, each with its real cause."""

import json
import pathlib
import socket
import sys
from collections.abc import Iterator

import pytest
from nova import rpc

from nova_accel.model import names
from placement_sync.fleet import compute_rpc
from placement_sync.fleet.cli import fleet_command
from tests.functional.sync.fleet import test_fleet
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import nova_standin, servers

A40 = "a40-vf-mdev"
_SPECS = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
}
Site = test_fleet.Site
Output = pytest.CaptureFixture[str]


class Cloud(transcript.Transcript):
    """Transcript of commands that get the endpoints of a site."""

    def __init__(self, site: Site) -> None:
        super().__init__(
            site.capsys,
            {
                str(site.place): "DIRECTORY",
                site.placement.url: "PLACEMENT",
                site.nova.url: "NOVA",
            },
        )
        self.site = site

    def run_all(self, lines: str, *hidden: str) -> None:
        """Run each line as a command; a line with a margin continues it.

        :param hidden: options that are not shown, the endpoints by default.
        """
        endpoints = (
            *("--endpoint", self.site.placement.url),
            *("--compute-endpoint", self.site.nova.url),
        )
        for line in lines.strip().replace("\n  ", " ").splitlines():
            self.run(line, *(hidden or endpoints))


@pytest.fixture
def empty(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: Output
) -> Iterator[Cloud]:
    """Return the transcript of a cloud without hosts."""
    with nova_standin.serve() as nova:
        yield Cloud(Site(placement, tmp_path, capsys, nova))


@pytest.fixture
def cloud(empty: Cloud) -> Cloud:
    """Return the transcript of a cloud of two hosts with servers."""
    empty.site.fill()
    empty.site.nova.add_flavor("gpu.8q", **_SPECS)
    empty.site.nova.add_flavor("plain")
    return empty


def test_lists(cloud: Cloud) -> None:
    site = cloud.site
    cloud.run_all(
        """\
device list --state missing
device list --host nope
device list --model H100
device list -c Modell
device list --all
device list --all --free
device list --all --host nope
host list --long
device show 0000:99:00.0
device show a40-vf-mdev/0000:99:00.0
device show 0000:41:00.0 -c inventories -c holders
device show 0000:3b:00.0 -c state -c drains
allocation list --profile A40-1Q
allocation list --server nope
usage list --model T4
host list --model A40
report --format text --host t4-mdev
"""
    )
    cloud.run_all(
        """\
profile list --host nope
profile list --host t4-mdev --model T4 -c Profile -c Free
profile list --all --model A40 -c Profile -c Offered
""",
        *("--endpoint", site.placement.url),
    )
    site.add("dfl-pac")
    cloud.run_all("device show 0000:35:00.0")
    site.nova.add_server(
        test_fleet.MOVE, "a40-vf-mdev.example.org", "vm-a", **_SPECS
    )
    cloud.run_all("allocation list --server vm-a")
    site.nova.refused = ("/servers",)
    report = site.place / "report.html"
    cloud.run_all(
        f"usage list -c Project\nreport -o {report} --host a40-vf-mdev"
    )
    cloud.run_all("allocation list", "--endpoint", site.placement.url)
    cloud.check("lists")


def test_an_empty_cloud(empty: Cloud) -> None:
    empty.site.nova.add_flavor("gpu.8q", **_SPECS)
    empty.run_all(
        """\
device list
device show 0000:41:00.0
allocation list
host list
usage list
device list --model A40
flavor set gpu.8q --class PGPU
"""
    )
    empty.run_all(
        "profile list\nprofile list --host node1",
        *("--endpoint", empty.site.placement.url),
    )
    root = empty.site.add("t4-mdev", VCPU=10)
    for address in (test_fleet.T4, "0000:af:00.0"):
        card = names.provider_uuid(root, address)
        empty.site.drain(card, VGPU=16, CUSTOM_GPU_MEMORY_MB=16384)
    empty.run_all(
        "profile list\nprofile list --all",
        *("--endpoint", empty.site.placement.url),
    )
    empty.check("empty cloud")


def test_flavors(cloud: Cloud) -> None:
    site = cloud.site
    site.nova.add_flavor(
        "pinned",
        **_SPECS,
        **{"trait_GPU1:CUSTOM_DEVICE_AT_GONE_0000_41_00_0": "required"},
    )
    site.nova.add_flavor(
        "two",
        **_SPECS,
        **{"resources_GPU2:VGPU": "1", "group_policy": "isolate"},
    )
    site.nova.add_flavor(
        "bits",
        **{
            "resources_GPU1:PGPU": "1",
            "trait_GPU1:CUSTOM_GPU_PCI_10DE_2330": "required",
            "hw:maxphysaddr_mode": "emulate",
            "hw:maxphysaddr_bits": "40",
        },
    )
    cloud.run_all(
        """\
flavor show nope
flavor show plain
flavor show gpu.8q
flavor show pinned --max-width 300
flavor show two
flavor show bits
flavor set plain
flavor set plain --model A40
flavor set plain --clear --locality numa
flavor set plain --clear --dry-run
flavor set gpu.8q --clear --dry-run
flavor set plain --profile A40-8Q --group 1
flavor set plain --profile A40-8Q --charge VGPU
flavor set plain --profile A40-9Q
flavor set plain --profile nvidia-558
flavor set plain --profile A40-8Q --bitstream 5f3c --dry-run
flavor set plain --profile A40-8Q --device a40-vf-mdev/0000:99:00.0
flavor set plain --profile A40-8Q --count 0
flavor set plain --profile A40-8Q --count 17 --dry-run
flavor set plain --profile A40-48C --dry-run
flavor set plain --profile A40-8Q --count 2 --dry-run
flavor set plain --profile T4-16Q --dry-run
flavor set plain --profile CUSTOM_VGPU_NVIDIA_X9_1Q --dry-run
flavor set plain --profile CUSTOM_VGPU_NVIDIA_X9_1Q --force --dry-run
flavor set plain --class VGPU --dry-run
flavor set plain --class CUSTOM_GPU_MEMORY_MB --dry-run
flavor set plain --class CUSTOM_NOTHING --dry-run
flavor set plain --class PGPU --model H100 --dry-run
flavor set plain --display on --dry-run
flavor set plain --packing spread --dry-run
flavor create small --profile A40-8Q --dry-run
flavor create small --vcpus 4 --ram 8192 --profile A40-8Q --dry-run
"""
    )
    site.add("dfl-pac")
    site.add("qat")
    cloud.run_all(
        """\
flavor set plain --profile 9346116d-a52d-5ca8-b06a-a9a389ef7c8d --dry-run
flavor set plain --profile f7df405c-bd7a-cf72-22f1-44b0b93acd18
  --bitstream 5f3c --dry-run
flavor set plain --class FPGA --bitstream 5f3c --dry-run
flavor set plain --class CUSTOM_QAT_VF --display on --dry-run
"""
    )
    cloud.check("flavors")


def test_choices(cloud: Cloud) -> None:
    nova = cloud.site.nova
    for name, value in {
        "either": "A40-8Q,T4-8Q",
        "second": "A40-8Q,A40-4Q",
        "wrong": "A40-8Q,A40-9Q",
    }.items():
        nova.add_flavor(name, **_SPECS, **{"accelerator:profiles": value})
    nova.add_flavor(
        "other",
        **{key.replace("A40", "L40S"): text for key, text in _SPECS.items()},
        **{"accelerator:profiles": "L40S-8Q,A40-8Q"},
    )
    nova.add_flavor(
        "none",
        **{key.replace("A40", "L40S"): text for key, text in _SPECS.items()},
        **{"accelerator:profiles": "L40S-8Q,L4-8Q"},
    )
    cloud.run_all(
        """\
flavor set plain --profile A40-8Q --or-profile T4-8Q --or-profile '*-8Q'
  --dry-run
flavor set plain --profile A40-8Q --or-profile A40-9Q --dry-run
flavor set plain --or-profile T4-8Q
flavor set plain --profile CUSTOM_VGPU_NVIDIA_X9_1Q --force
  --or-profile T4-8Q --dry-run
flavor show either
explain either
explain other
explain none
explain wrong
capacity show --flavor either
capacity show --flavor other
"""
    )
    cloud.check("choices")


def test_imports(cloud: Cloud) -> None:
    directory = cloud.site.place
    flavor = {"name": "gpu.8q", "vcpus": 8, "ram": 1024, "disk": 20}
    own = {"properties": dict(_SPECS)}
    for name, content in {
        "empty": [],
        "twice": [flavor | own, flavor | own],
        "sizes": [flavor | own],
        "new": [{"name": "new", "properties": dict(_SPECS)}],
        "swap": [flavor | own | {"name": "new", "swap": 4}],
        "alias": [flavor | {"properties": {"pci_passthrough:alias": "a40:1"}}],
        "plain": [flavor | {"properties": {}}],
        "number": [flavor | own | {"vcpus": "many"}],
        "specs": [flavor | {"properties": "x"}],
        "value": [flavor | {"properties": {"a": []}}],
        "groups": [{"name": "new", "groups": [1], "settings": {}}],
        "object": 1,
    }.items():
        (directory / name).write_text(json.dumps(content))
        cloud.run_all(f"flavor import {directory / name} --dry-run")
    profiles = [{"Profile": "A40-8Q", "Traits": "", "Charges": {}}]
    (directory / "profiles").write_text(json.dumps(profiles))
    (directory / "bytes").write_bytes(b"\xff")
    cloud.run_all(
        f"flavor import {directory / 'profiles'} --dry-run\n"
        f"flavor import {directory / 'bytes'}"
    )
    (directory / "text").write_text("{")
    cloud.run_all(
        f"flavor import {directory / 'text'}\n"
        f"flavor import {directory / 'missing'}\n"
        f"flavor import {directory / 'new'} --vcpus 2 --ram 512 --dry-run"
    )
    (directory / "wrong").write_text('{"replace": {}, "by": {}}')
    cloud.run_all(f"flavor convert {directory / 'wrong'}")
    (directory / "none").write_text("")
    cloud.run_all(f"flavor convert {directory / 'none'}")
    conf = directory / "nova.conf"
    conf.write_text("[nova_accel]\nlicensed_series = C\n")
    cloud.run_all(f"flavor import {directory / 'sizes'} --config-file {conf}")
    cloud.check("flavor import")


def test_explanations(cloud: Cloud) -> None:
    site = cloud.site
    site.nova.add_flavor("vm-a")
    site.nova.add_flavor("all", **{"resources:VGPU": "1"})
    cloud.run_all(
        """\
explain
explain gpu.8q -c Card -c Verdict
explain gpu.8q --host nope
explain gpu.8q --flavor plain
explain plain
explain vm-a
flavor show all
explain --extra-spec VGPU
explain --extra-spec resources_GPU1:VGPU=1
  --extra-spec trait_GPU1:CUSTOM_NEVER=required
explain --extra-spec resources_GPU1:VGPU=1 --extra-spec resources_GPU2:VGPU=1
explain gpu.8q --extra-spec accelerator:packing=tight
explain gpu.8q --extra-spec accelerator:fpga_bitstream=5f3c
explain gpu.8q --extra-spec resources_GPU2:VGPU=9
  --extra-spec group_policy=none
capacity show --flavor gpu.8q
capacity show --flavor plain
capacity show --flavor nope
"""
    )
    cloud.check("explain and capacity")


def test_reasons_of_cards(cloud: Cloud) -> None:
    """Cards without a place, classes without a card, and odd requests."""
    site = cloud.site
    for name in ("a100-mig-mdev", "intel-vf", "gvtg", "l40s-vendor-vfio"):
        site.add(name, VCPU=16, MEMORY_MB=65536, DISK_GB=99)
    site.lose()
    image = "6f4d2a52-8a4e-4f0c-9d53-b3c4e5a1f001"
    region = {
        "resources_FPGA1:FPGA": "1",
        "trait_FPGA1:CUSTOM_FPGA_PROGRAMMABLE": "required",
    }
    site.nova.add_flavor(
        "fpga", **region, **{"accelerator:fpga_bitstream": image}
    )
    new = {"resources_GPU1:VGPU": "1"}
    new["trait_GPU1:CUSTOM_VGPU_NVIDIA_X9_1Q"] = "required"
    path = site.place / "flavors.json"
    path.write_text(json.dumps([{"name": "x9", "properties": new}]))
    gpu = "explain --extra-spec resources_GPU1:VGPU=1"
    cloud.run_all(
        f"""\
profile list --model A100
profile list --host intel-vf
profile list --host nope
{gpu} --extra-spec trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_12Q=required
{gpu} --extra-spec trait_GPU1:CUSTOM_VGPU_NVIDIA_A100_4_20C=required
{gpu} --extra-spec trait_GPU1:CUSTOM_VGPU_NVIDIA_A100_20C=required
{gpu} --extra-spec trait_GPU1:CUSTOM_VGPU_NVIDIA_L40S_48Q=required --long
explain --extra-spec resources_GPU1:CUSTOM_NVME=1
explain fpga
flavor show fpga
flavor set plain --profile A40-8Q --model X --dry-run
flavor set gpu.8q --profile T4-4Q --group B --dry-run
flavor set gpu.8q --profile A40-8C --group B --dry-run
flavor set plain --profile I915_GVTG_V5_4 --dry-run
flavor set plain --profile L40S-48Q --dry-run
flavor set plain --class VGPU --model FLEX --dry-run
flavor import {path} --dry-run --vcpus 1 --ram 512
device show 0000:41:00.0
device set 0000:41:00.0 --drain --reason r
device heal 0000:41:00.0
device list --state stale
usage list --project nope
device list --timeout soon
report --format text --host a40-vf-mdev
"""
    )
    conf = site.place / "nova.conf"
    conf.write_text("[nova_accel]\nlicensed_series = Q\n")
    cloud.run_all(
        f"flavor set plain --profile T4-4C --dry-run --config-file {conf}"
    )
    cloud.check("reasons of cards")


def test_problems_of_a_report(cloud: Cloud) -> None:
    site = cloud.site
    site.nova.add_flavor("odd", **{"accelerator:packing": "no"})
    site.nova.add_host(site.root, test_fleet.A40_HOST)
    site.mark(site.card, names.MISSING_TRAIT)
    path = f"/resource_providers/{site.root}/traits"
    body = site.placement.call("GET", path)
    body["traits"].append(names.DISABLED_TRAIT)
    site.placement.call("PUT", path, body)
    root = site.add("l40s-vendor-vfio")
    card = names.provider_uuid(root, "0000:3d:00.0")
    site.mark(card, names.MISSING_TRAIT)
    other = names.provider_uuid(root, "0000:3e:00.0")
    site.mark(other, names.UNKNOWN_TRAIT)
    cloud.run_all("report --format text")
    site.allocate(card, test_fleet.OTHER_VM, **test_fleet.PART)
    site.set_inventories(card, VGPU=-1, CUSTOM_GPU_MEMORY_MB=-4096)
    cloud.run_all("report --format text --host l40s-vendor-vfio")
    cloud.check("problems of a report")


def test_calls_of_hosts(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message bus: what each command says before it calls a host."""
    conf = cloud.site.place / "nova.conf"
    conf.write_text("[DEFAULT]\nhost = node1\n")
    silent = cloud.site.place / "silent.conf"
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    silent.write_text(
        f"[DEFAULT]\ntransport_url = rabbit://a:b@127.0.0.1:{port}/\n"
    )
    wrong = cloud.site.place / "wrong.conf"
    wrong.write_text("[DEFAULT]\ntransport_url = rabbit://a:b@127.0.0.1:x/\n")
    away = cloud.site.place / "away.conf"
    away.write_text("[DEFAULT]\ntransport_url = rabbit://a:b@127.0.0.1:1/\n")
    uuids = f"{test_fleet.VM} --host node1"
    cloud.run_all(
        f"""\
device set 0000:41:00.0 --drain
device set 0000:41:00.0 --undrain --reason r --wait-empty 3
device set 0000:41:00.0 --drain --reason r --wait 0000:3b:00.0
device set 0000:99:00.0 --undrain
device set 0000:41:00.0 --undrain
device heal t4-mdev/0000:99:00.0
server show {uuids}
server show {uuids} --config-file {conf}
server show {uuids} --config-file {wrong}
server show {uuids} --config-file {away}
device list --state drained -c Address -c 'Still fits' --config-file {away}
"""
    )
    monkeypatch.setattr(compute_rpc, "CONNECT_SECONDS", 0.2)
    cloud.run_all(f"server show {uuids} --config-file {silent}")
    listener.close()
    cloud.site.nova.add_host(cloud.site.root, test_fleet.A40_HOST)
    cloud.site.nova.down["a40-vf-mdev"] = None
    monkeypatch.setattr(fleet_command, "MOST_COUNTED", 0)
    cloud.run_all("device list -c Address -c State -c Servers -c 'Still fits'")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    cloud.run_all(f"report -o {cloud.site.place / 'report.html'}")
    cloud.run_all("device list", "--endpoint", "http://127.0.0.1:1")
    cloud.check("calls of hosts")


def test_servers_that_cant_be_called(cloud: Cloud) -> None:
    cloud.site.nova.add_server(
        "eeeeeeee-0000-4000-8000-00000000000e", "", "shelved"
    )
    fake = cloud.site.place / "fake.conf"
    fake.write_text("[DEFAULT]\ntransport_url = fake:/\n")
    uuids = f"{test_fleet.VM} --host node1 --config-file {fake}"
    cloud.run_all(
        f"""\
server show nope --config-file {fake}
server show shelved --config-file {fake}
server show vm-a --host node1 --config-file {fake}
server attach {uuids} --profile A40-8Q --bitstream 5f3c
"""
    )
    rpc.cleanup()
    cloud.check("servers")
