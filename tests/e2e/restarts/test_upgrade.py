# SPDX-License-Identifier: Apache-2.0
"""Upgrade from an earlier release with servers running, and back.

The wheel of the other release replaces the installed one, and the services
that import it are restarted. The servers' guests run on.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import fpga_site
from tests.e2e.support.second_host import MTTY_1
from tests.e2e.support.site import Site, fault
from tests.lab.cloud.hosts import Host
from tests.lab.cloud.installations import find_wheel, run_uv
from tests.lab.cloud.processes import run
from tests.lab.vm import topology
from tests.support import earlier_release

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("clean"),
]

_LIB = '. "$LAB_GUEST/lib.sh"'
#: Prints the wheel that was installed; two releases may have one version.
_INSTALLED = """
from importlib.metadata import distribution
print(distribution("nova-accel").read_text("direct_url.json"))
"""
#: What the kernel has for servers: mdevs, and the types of the A40's VFs.
_KERNEL = """
for mdev in /sys/bus/mdev/devices/*; do
    [ ! -e $mdev ] || echo $(basename $mdev) $(readlink $mdev/mdev_type)
done
cd /sys/bus/pci/devices/$1
for type in virtfn*/nvidia/current_vgpu_type; do
    [ ! -e $type ] || echo $type $(cat $type)
done
"""
_MDEV_FORM: Mapping[str, Mapping[str, str]] = {
    "mdev": {"CUSTOM_MDEV": "CUSTOM_MDEV_MTTY_2"},
    "vgpu": {
        "VGPU": "CUSTOM_VGPU_NVIDIA_T4_4Q",
        "CUSTOM_GPU_MEMORY_MB=4096": "",
    },
    "vf": {"VGPU": "CUSTOM_GPU_VF_INTEL_56C0"},
}
_VFIO_FORM: Mapping[str, Mapping[str, str]] = {
    "typed": {
        "VGPU": "CUSTOM_VGPU_NVIDIA_A40_8Q",
        "CUSTOM_GPU_MEMORY_MB=8192": "",
    },
    "whole": {"PGPU": "CUSTOM_GPU_PCI_10DE_1EB8"},
}


@pytest.fixture(scope="module")
def wheels(
    lab: Site,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Path, Path]]:
    """Return the wheels of an earlier release and of this one."""
    if reason := earlier_release.find_missing(request.param):
        pytest.skip(reason)
    own = find_wheel(lab.layout)
    place = tmp_path_factory.mktemp("earlier")
    earlier_release.extract_source(place / "source", request.param)
    python = ("--python", lab.layout.program("python"))
    run_uv(
        lab.layout,
        *("build", "--wheel", *python, "--out-dir", place, place / "source"),
    )
    (earlier,) = place.glob("*.whl")
    yield earlier, own
    shutil.rmtree(place)
    _install(lab, own)


@pytest.fixture
def use(
    lab: Site, wheels: tuple[Path, Path], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], None]]:
    """Return a function that changes to the "earlier" release, or "this"."""
    earlier, own = wheels
    form = request.getfixturevalue("form")
    options = _load_drivers(lab, form)

    def switch(release: str) -> None:
        _install(lab, earlier if release == "earlier" else own)
        lab.cloud.restart_api()
        lab.cloud.restart_scheduler()
        lab.restart_compute("upgrade", *options)

    yield switch
    switch("this")
    lab.clean()
    host = Host(lab.cloud, 0)
    # While it runs, it creates virtual functions that are missing.
    host.stop_compute()
    host.run(f"{_LIB}; lab_nvidia off")
    if form == "mdev":
        host.run(f"{_LIB}; lab_rmmod xe && lab_dfl off")
    host.start_compute()


@pytest.mark.parametrize(
    "wheels", [earlier_release.LAST, earlier_release.COMMIT], indirect=True
)
@pytest.mark.parametrize("form", ["mdev", "vfio"])
def test_servers_keep_what_they_have(
    lab: Site, use: Callable[[str], None], form: str
) -> None:
    use("earlier")
    flavors = _create_flavors(lab, form)
    servers = [lab.boot(f"e2e-{flavor.name}", flavor) for flavor in flavors]
    if form == "mdev":
        _attach(lab, servers[0])
    before = _observe(lab, servers)
    assert len(before["claims"]) == len(servers)

    use("this")
    assert _observe(lab, servers) == before
    assert _find_wrong(lab) == []
    *others, last = servers
    assert lab.hard_reboot(others[0]).status == "ACTIVE"
    lab.delete(last)
    lab.wait_gone(last)
    servers = [*others, lab.boot("e2e-replaced", flavors[-1])]
    assert _find_wrong(lab) == []
    before = _observe(lab, servers)

    use("earlier")
    assert _observe(lab, servers) == before
    for server in servers:
        again = lab.hard_reboot(server)
        assert again.status == "ACTIVE", fault(again)
    assert _observe(lab, servers)["claims"] == before["claims"]
    lab.clean()
    after = _observe(lab, servers, are_deleted=True)
    assert after["claims"] == {}
    assert after["kernel"] == []
    assert not any(after["allocations"].values())


def _attach(lab: Site, server: Any) -> None:
    """Attach a second mdev to a server, by the command of before 1.0."""
    lab.commanded(
        *("nova-accel", "server", "attach", server.id, "--profile", MTTY_1),
        f"--config-file={lab.layout.etc / 'nova.conf'}",
    )
    assert len(lab.claims()[server.id]) == 2


def _load_drivers(lab: Site, form: str) -> list[str]:
    """Load drivers of a form; return nova-compute's options for them."""
    a40 = topology.A40_ADDRESS
    if form == "vfio":
        lab.on_host(f"{_LIB}; lab_nvidia vfio {a40}")
        lab.on_host(f"/usr/lib/nvidia/sriov-manage -d {a40}")
        lines = [
            {"address": a40, "num_vfs": 16},
            {"address": topology.T4_ADDRESS, "use": "passthrough"},
        ]
        return [f"device_spec = {json.dumps(line)}" for line in lines]
    lab.on_host(f"{_LIB}; lab_nvidia mdev {a40} 4")
    lab.on_host(f"{_LIB}; lab_insmod xe; lab_dfl")
    line = {"address": topology.FLEX_ADDRESS, "num_vfs": 2}
    return [
        f"device_spec = {json.dumps(line)}",
        f"bitstream_owners = {lab.api.current_project_id}",
    ]


def _create_flavors(lab: Site, form: str) -> list[Any]:
    kinds = _VFIO_FORM if form == "vfio" else _MDEV_FORM
    flavors = [_create_flavor(lab, *kind) for kind in kinds.items()]
    if form == "mdev":
        region = fpga_site.programmed(lab, fpga_site.bitstream(lab))
        flavors.append(region)
    return flavors


def _create_flavor(lab: Site, name: str, kind: Mapping[str, str]) -> Any:
    specs = {}
    for key, trait in kind.items():
        resource, _, amount = key.partition("=")
        specs[f"resources_X__{resource}"] = amount or "1"
        if trait:
            specs[f"trait_X__{trait}"] = "required"
    return lab.flavor(name, **specs)


def _observe(
    lab: Site, servers: Sequence[Any], are_deleted: bool = False
) -> dict[str, Any]:
    """Return what servers have, as each of those that know it says."""
    hostdevs = {
        server.id: [lab.hostdevs(server, kind) for kind in ("mdev", "pci")]
        for server in servers
        if not are_deleted
    }
    kernel = lab.on_host(_KERNEL, topology.A40_ADDRESS).splitlines()
    return {
        "claims": lab.claims(),
        "allocations": {s.id: lab.allocations(s) for s in servers},
        "hostdevs": hostdevs,
        "kernel": sorted(line for line in kernel if not line.endswith(" 0")),
    }


def _find_wrong(lab: Site) -> list[Any]:
    report = json.loads(lab.synced("audit", "-f", "json"))
    findings: list[Any] = report["findings"]
    return findings


def _install(lab: Site, wheel: Path) -> None:
    python = lab.layout.program("python")
    flags = ("--no-deps", "--reinstall-package", "nova-accel")
    run_uv(lab.layout, "pip", "install", "--python", python, *flags, wheel)
    done = run([python, "-I", "-c", _INSTALLED])
    assert f"{wheel}" in done.stdout, done.stdout + done.stderr
