# SPDX-License-Identifier: Apache-2.0
"""GPUs of three kinds, cut at spawn through real nova.

The cards are emulated, their vendors' host drivers are fakes; the kernel,
libvirt, QEMU and OpenStack are real.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.support.site import Site, fault
from tests.lab.cloud.hosts import Host
from tests.lab.vm import topology

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

A40, T4, FLEX = "0000_01_00_0", "0000_02_00_0", "0000_03_00_0"
#: All of them while they are VFIO devices; some while they are mdev parents:
#: reading the types of all costs an emulated processor half a minute.
VFS, MDEV_VFS, FLEX_VFS = 16, 4, 2

#: The numbers of the types that are made here, of fakenvidia.c.
T4_4Q, T4_4C, A40_8Q = "nvidia-232", "nvidia-319", "nvidia-562"

_LIB = '. "$LAB_GUEST/lib.sh"'
#: nova-compute's options for the cards while they make mdevs: the Flex
#: gets two of its four VFs.
_MDEV_SPEC: tuple[str, ...] = (
    f'{{"address": "{topology.FLEX_ADDRESS}", "num_vfs": {FLEX_VFS}}}',
)
#: The A40's VFs are enabled by nova-compute, with the vendor's tool.
_VFIO_SPEC: tuple[str, ...] = (
    f'{{"address": "{topology.A40_ADDRESS}", "num_vfs": {VFS}}}',
    f'{{"address": "{topology.T4_ADDRESS}", "use": "passthrough"}}',
)

_TYPES = """
cd /sys/bus/pci/devices/$1
for vf in virtfn*; do
    number=$(cat $vf/nvidia/current_vgpu_type)
    [ $number = 0 ] || echo $(basename $(readlink $vf)) $number
done
"""
_MDEVS = """
for mdev in /sys/bus/mdev/devices/*; do
    [ -e $mdev ] || continue
    kind=$(basename $(readlink $mdev/mdev_type))
    echo $(basename $mdev) $(basename $(dirname $(readlink -f $mdev))) $kind
done
"""
_DRIVER = """
link=$(readlink /sys/bus/pci/devices/$1/driver) || exit 0
basename $link
"""


@pytest.fixture(scope="module")
def load(lab: Site) -> Iterator[Callable[[str], None]]:
    """Return a function that loads drivers of a form, and restarts Nova."""
    current = ""

    def switch(form: str) -> None:
        nonlocal current
        if form == current:
            return
        a40 = topology.A40_ADDRESS
        if form == "vfio":
            spec = _VFIO_SPEC
            lab.on_host(f"{_LIB}; lab_nvidia vfio {a40}")
            lab.on_host(f"/usr/lib/nvidia/sriov-manage -d {a40}")
        else:
            spec = _MDEV_SPEC
            lab.on_host(f"{_LIB}; lab_nvidia mdev {a40} {MDEV_VFS}")
            lab.on_host(f"{_LIB}; lab_insmod xe")
        lab.restart_compute("gpu", *(f"device_spec = {li}" for li in spec))
        current = form

    yield switch
    lab.clean()
    host = Host(lab.cloud, 0)
    # While it runs, it creates virtual functions that are missing.
    host.stop_compute()
    # A module that anything holds can't be unloaded.
    host.run(f"{_LIB}; lab_nvidia off && lab_rmmod xe")
    host.start_compute()


@pytest.fixture
def mdev_form(load: Callable[[str], None]) -> None:
    load("mdev")


@pytest.fixture
def vfio_form(load: Callable[[str], None]) -> None:
    load("vfio")


def vgpu(lab: Site, name: str, memory_mb: int) -> Any:
    """Create a flavor for one vGPU of a type."""
    specs = {
        "resources_GPU__VGPU": "1",
        "resources_GPU__CUSTOM_GPU_MEMORY_MB": str(memory_mb),
        f"trait_GPU__CUSTOM_VGPU_NVIDIA_{name}": "required",
    }
    return lab.flavor(name, **specs)


def mdevs(lab: Site) -> dict[str, tuple[str, str]]:
    """Return the parent and the type of each mdev, from the kernel."""
    rows = (line.split() for line in lab.on_host(_MDEVS).splitlines())
    return {uuid: (parent, kind) for uuid, parent, kind in rows}


def vgpu_types(lab: Site) -> dict[str, str]:
    """Return the types of the A40's typed VFs, from the kernel."""
    return typed_vfs(Host(lab.cloud, 0))


def typed_vfs(host: Host) -> dict[str, str]:
    """Return the types of the typed VFs of a host's A40, from its kernel."""
    lines = host.run(_TYPES, topology.A40_ADDRESS).splitlines()
    return dict((line.split()[0], line.split()[1]) for line in lines)


def driver(lab: Site, address: str) -> str:
    """Return the driver that has a function; empty for none."""
    return lab.on_host(_DRIVER, address).strip()


@pytest.mark.long
def test_two_types_on_one_card_and_another_size_refused(
    lab: Site, mdev_form: None
) -> None:
    t4 = lab.providers()[T4]
    assert t4.inventories["VGPU"]["total"] == 16
    flavors = [vgpu(lab, name, 4096) for name in ("T4_4Q", "T4_4C")]
    requested = [lab.request(f.name, f) for f in flavors]
    servers = [lab.await_build(server) for server in requested]
    assert [s.status for s in servers] == ["ACTIVE"] * 2, [
        fault(server) for server in servers
    ]
    mdevs_of = {s.name: lab.hostdevs(s, "mdev") for s in servers}
    assert mdevs(lab) == {
        mdevs_of["e2e-T4_4Q"][0]: (topology.T4_ADDRESS, T4_4Q),
        mdevs_of["e2e-T4_4C"][0]: (topology.T4_ADDRESS, T4_4C),
    }
    resources = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096}
    for server in servers:
        assert lab.allocations(server)[t4.uuid] == resources

    offset = lab.log_offset("nova-scheduler")
    other = lab.await_build(lab.request("e2e-other", vgpu(lab, "T4_8Q", 8192)))
    assert other.status == "ERROR"
    assert "No valid host was found" in other.fault["message"]
    reason = f"No host can serve .* of server {other.id}"
    assert lab.logged("nova-scheduler", reason, offset)

    lab.clean()
    assert mdevs(lab) == {}
    assert lab.claims() == {}
    for server in servers:
        assert lab.allocations(server) == {}


@pytest.mark.long
def test_mdevs_of_two_servers_are_on_two_vfs(
    lab: Site, mdev_form: None
) -> None:
    assert lab.providers()[A40].inventories["VGPU"]["total"] == MDEV_VFS
    flavor = vgpu(lab, "A40_8Q", 8192)
    requested = [lab.request(f"e2e-a40-{n}", flavor) for n in range(2)]
    servers = [lab.await_build(server) for server in requested]
    assert [s.status for s in servers] == ["ACTIVE"] * 2, [
        fault(server) for server in servers
    ]
    created = mdevs(lab)
    assert {uuid for s in servers for uuid in lab.hostdevs(s, "mdev")} == set(
        created
    )
    assert {kind for _, kind in created.values()} == {A40_8Q}
    parents = {parent for parent, _ in created.values()}
    assert len(parents) == 2
    assert all(p.startswith("0000:01:0") for p in parents)
    assert topology.A40_ADDRESS not in parents
    lab.clean()
    assert mdevs(lab) == {}
    assert lab.claims() == {}


@pytest.mark.long
def test_a_virtual_function_as_it_is(lab: Site, mdev_form: None) -> None:
    flex = lab.providers()[FLEX]
    assert flex.inventories["VGPU"]["total"] == FLEX_VFS
    flavor = lab.flavor(
        "flex",
        resources_GPU__VGPU="1",
        trait_GPU__CUSTOM_GPU_VF_INTEL_56C0="required",
    )
    server = lab.boot("e2e-flex", flavor)
    (address,) = lab.hostdevs(server, "pci")
    assert address in {"0000:03:00.1", "0000:03:00.2"}
    assert "managed='yes'" in lab.domain(server)
    assert driver(lab, address) == "vfio-pci"
    assert lab.allocations(server)[flex.uuid] == {"VGPU": 1}
    lab.clean()
    # libvirt gave it back, and the host's driver does not take it again.
    assert driver(lab, address) == ""
    assert lab.claims() == {}
    assert lab.allocations(server) == {}


def test_a_vf_is_typed_at_spawn_and_cleared_at_delete(
    lab: Site, vfio_form: None
) -> None:
    """libvirt of Debian 12 has detached each VF once (lab_detach_once)."""
    a40 = lab.providers()[A40]
    assert a40.inventories["VGPU"]["total"] == VFS
    assert vgpu_types(lab) == {}
    server = lab.boot("e2e-typed", vgpu(lab, "A40_8Q", 8192))
    (address,) = lab.hostdevs(server, "pci")
    assert "managed='no'" in lab.domain(server)
    typed = {address: A40_8Q.removeprefix("nvidia-")}
    assert vgpu_types(lab) == typed
    assert driver(lab, address) == "nvidia"
    resources = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}
    assert lab.allocations(server)[a40.uuid] == resources

    other = lab.await_build(
        lab.request("e2e-other", vgpu(lab, "A40_24Q", 24576))
    )
    assert other.status == "ERROR"
    assert "No valid host was found" in other.fault["message"]
    assert vgpu_types(lab) == typed

    claims = lab.claims()
    server = lab.hard_reboot(server)
    assert server.status == "ACTIVE", fault(server)
    assert lab.hostdevs(server, "pci") == [address]
    assert vgpu_types(lab) == typed
    assert lab.claims() == claims

    lab.clean()
    assert vgpu_types(lab) == {}
    assert lab.claims() == {}
    assert lab.allocations(server) == {}


@pytest.mark.long
def test_a_whole_card_comes_back_to_its_driver(
    lab: Site, vfio_form: None
) -> None:
    flavor = lab.flavor(
        "whole",
        resources_GPU__PGPU="1",
        trait_GPU__CUSTOM_GPU_PCI_10DE_1EB8="required",
    )
    assert driver(lab, topology.T4_ADDRESS) == "nvidia"
    server = lab.boot("e2e-whole", flavor)
    assert lab.hostdevs(server, "pci") == [topology.T4_ADDRESS]
    assert driver(lab, topology.T4_ADDRESS) == "vfio-pci"
    lab.clean()
    assert driver(lab, topology.T4_ADDRESS) == "nvidia"
    assert lab.claims() == {}
    assert lab.allocations(server) == {}
