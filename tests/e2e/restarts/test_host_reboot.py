# SPDX-License-Identifier: Apache-2.0
"""The compute host loses its power with guests running, and boots again.

Its disk has the domains; mdevs, virtual functions and their types are gone.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support import agreement
from tests.e2e.support.second_host import MTTY_2
from tests.e2e.support.site import Site
from tests.e2e.test_gpu import VFS, vgpu, vgpu_types
from tests.lab.cloud.hosts import Host
from tests.lab.vm import topology

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("clean")]

_A40 = topology.A40_ADDRESS
#: What a host's own start-up does: the vendor's driver, and no more. The VFs
#: come and go once, so that Debian 12's libvirt knows them.
_BOOT = f"""
. "$LAB_GUEST/lib.sh"
lab_nvidia vfio {_A40} && /usr/lib/nvidia/sriov-manage -d {_A40}
"""
_NUM_VFS = "cat /sys/bus/pci/devices/$1/sriov_numvfs"
_LAB_NVIDIA_OFF = '. "$LAB_GUEST/lib.sh"; lab_nvidia off'


@pytest.fixture
def host(lab: Site) -> Iterator[Host]:
    """Return the lab's own host, with the A40 in the form of typed VFs."""
    own_host = Host(lab.cloud, 0)
    own_host.run(_BOOT)
    specs = (
        '{"address": "mtty", "max_slots": 2}',
        f'{{"address": "{_A40}", "num_vfs": {VFS}}}',
    )
    overlay = lab.layout.state / "reboot.conf"
    lines = ["[DEFAULT]", "resume_guests_state_on_host_boot = true"]
    lines += ["[nova_accel]", *(f"device_spec = {spec}" for spec in specs)]
    overlay.write_text("\n".join([*lines, ""]))
    lab.cloud.restart_compute(overlay)
    yield own_host
    lab.clean()
    own_host.stop_compute()
    own_host.run(_LAB_NVIDIA_OFF)
    own_host.start_compute()


@pytest.mark.long
def test_a_host_that_lost_its_power_makes_all_anew(
    lab: Site, host: Host
) -> None:
    mtty = lab.flavor(
        MTTY_2,
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
    )
    requested = [
        lab.request("e2e-mdev", mtty, host=host.name),
        lab.request("e2e-vf", vgpu(lab, "A40_8Q", 8192)),
    ]
    with_mdev, with_vf = map(lab.await_build, requested)
    before = _facts(lab, host, with_vf)
    assert before["running"] == {with_mdev.id, with_vf.id}, before
    claims = lab.claims()

    host.stop_compute()
    host.switch_off()
    host.switch_on()
    host.run(_BOOT)
    assert host.mdevs() == {}
    assert host.run(_NUM_VFS, _A40).strip() == "0"
    assert agreement.domains(host).keys() == before["running"]
    assert agreement.running(host) == set()

    host.start_compute(lab.layout.state / "reboot.conf")
    for server in (with_mdev, with_vf):
        assert lab.reach(server, "ACTIVE")
    assert _facts(lab, host, with_vf) == before
    assert lab.claims() == claims


def _facts(lab: Site, host: Host, with_vf: Any) -> dict[str, Any]:
    return {
        "mdevs": agreement.domains(host),
        "kernel": host.mdevs(),
        "vf": lab.hostdevs(with_vf, "pci"),
        "types": vgpu_types(lab),
        "running": agreement.running(host),
    }
