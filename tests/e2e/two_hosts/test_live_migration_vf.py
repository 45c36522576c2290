# SPDX-License-Identifier: Apache-2.0
"""A guest with a typed VF migrates between two hosts while it runs.

The fake of NVIDIA's driver carries a page of the VF's memory.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.support import agreement
from tests.e2e.support.live_guest import LiveGuest, upload_image
from tests.e2e.support.second_host import TwoHosts, retry_comparison
from tests.e2e.support.site import Site
from tests.e2e.test_gpu import A40, A40_8Q, typed_vfs, vgpu
from tests.lab.cloud import actual_state
from tests.lab.cloud.hosts import Host
from tests.lab.vm import topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean"),
]

_VFS = 2
_LIB = '. "$LAB_GUEST/lib.sh"'
_OTHER_VERSION = "550.54.15"
_SHOW_VERSION = """
echo "$1" > /run/nvidia-version
mount --bind /run/nvidia-version /sys/module/nvidia/version
"""


@pytest.fixture
def cards(lab: Site, two: TwoHosts) -> Iterator[None]:
    """Let the A40 of both hosts make typed VFs."""
    spec = f'{{"address": "{topology.A40_ADDRESS}", "num_vfs": {_VFS}}}'
    # Not in state: Nova looks for compute_id beside configuration files.
    overlay = lab.layout.etc / "typed-vfs.conf"
    overlay.write_text(f"[nova_accel]\ndevice_spec = {spec}\n")
    hosts = (two.first, two.second)
    for host in hosts:
        host.run(f"{_LIB}; lab_nvidia vfio {topology.A40_ADDRESS} {_VFS}")
        host.start_compute(overlay)
    yield
    lab.clean()
    for host in hosts:
        host.stop_compute()
        host.run(f"{_LIB}; lab_nvidia off")
        host.start_compute()


def boot_guest(lab: Site, two: TwoHosts) -> LiveGuest:
    server = two.boot(
        "e2e-live-vf",
        two.first,
        vgpu(lab, "A40_8Q", 8192),
        upload_image(two),
    )
    guest = LiveGuest(two, server)
    guest.set_registers("K")
    return guest


def test_there_and_back(lab: Site, two: TwoHosts, cards: None) -> None:
    guest = boot_guest(lab, two)
    retry_comparison(lambda: _check(two, guest, two.first, two.second))

    assert guest.migrate(two.second) == "completed"
    retry_comparison(lambda: _check(two, guest, two.second, two.first))
    guest.check_registers("K")
    assert guest.migrate() == "completed"
    retry_comparison(lambda: _check(two, guest, two.first, two.second))
    guest.check_registers("K")


@pytest.fixture
def other_version(two: TwoHosts) -> Iterator[None]:
    """Show another version of the second host's driver."""
    two.second.run(_SHOW_VERSION, _OTHER_VERSION)
    yield
    two.second.run("umount /sys/module/nvidia/version")


def test_refused_by_a_host_with_another_version_of_the_driver(
    lab: Site, two: TwoHosts, cards: None, other_version: None
) -> None:
    guest = boot_guest(lab, two)
    offset = lab.log_offset("nova-compute")

    assert guest.migrate(two.second) == "error"
    reason = f"and {_OTHER_VERSION} at the destination"
    assert lab.logged("nova-compute", reason, offset)
    retry_comparison(lambda: _check(two, guest, two.first, two.second))
    guest.check_registers("K")


def _check(two: TwoHosts, guest: LiveGuest, host: Host, other: Host) -> None:
    """Check that all agree that a guest is on a host and not on the other."""
    assert two.host_of(guest.server) == host.name
    assert agreement.running(host) == {guest.server.id}
    assert agreement.running(other) == set()
    xml = host.run('virsh dumpxml "$1"', guest.server.id)
    (address,) = actual_state.hostdev_sources(xml, "pci")
    assert typed_vfs(host) == {address: A40_8Q.removeprefix("nvidia-")}
    assert typed_vfs(other) == {}
    provider = two.lab.providers(host.node)[A40].uuid
    allocations = two.lab.allocations(guest.server)
    resources = {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192}
    assert allocations[provider] == resources
    assert two.lab.consumers(two.lab.providers(other.node)[A40].uuid) == {}
