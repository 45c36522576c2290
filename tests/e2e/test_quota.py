# SPDX-License-Identifier: Apache-2.0
"""Quota of accelerators by the limits in a real Keystone."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openstack import exceptions

from tests.e2e.support.site import Site, fault
from tests.lab.cloud import settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("clean"),
]

T4 = "0000_02_00_0"
VGPU, MEMORY, FPGA = "VGPU", "CUSTOM_GPU_MEMORY_MB", "FPGA"
#: A T4-4Q's framebuffer in MiB; a T4 holds four: more than any limit below
#: lets through, so it is never the host that refuses.
SIZE, FITTING = 4096, 4

_LIB = '. "$LAB_GUEST/lib.sh"'
#: Enough of all else that a server takes.
_OTHERS = {
    "servers": 10,
    "class:VCPU": 20,
    "class:MEMORY_MB": 4096,
    "class:DISK_GB": 100,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits in Keystone that are for nova."""

    identity: Any
    service_id: str
    region_id: str
    project_id: str

    def register(self, defaults: Mapping[str, int]) -> None:
        """Let every project have this much, unless it has its own limit."""
        for name, amount in defaults.items():
            self.identity.create_registered_limit(
                service_id=self.service_id,
                region_id=self.region_id,
                resource_name=name,
                default_limit=amount,
            )

    def limit(self, name: str, amount: int) -> None:
        """Let the lab's own project have this much."""
        self.identity.create_limit(
            service_id=self.service_id,
            region_id=self.region_id,
            project_id=self.project_id,
            resource_name=name,
            resource_limit=amount,
        )

    def forget(self) -> None:
        """Remove every limit that is for nova."""
        for limit in self.identity.limits(service_id=self.service_id):
            self.identity.delete_limit(limit)
        for limit in self.identity.registered_limits(
            service_id=self.service_id
        ):
            self.identity.delete_registered_limit(limit)


@pytest.fixture(scope="module")
def limits(lab: Site) -> Iterator[Limits]:
    """Return Keystone's limits, which nova goes by until the end."""
    identity = lab.api.identity
    (endpoint,) = identity.endpoints(
        service_id=identity.find_service("compute").id, interface="public"
    )
    keystone_limits = Limits(
        identity,
        endpoint.service_id,
        endpoint.region_id,
        lab.api.current_project_id,
    )
    overlay = lab.layout.state / "quota.conf"
    overlay.write_text(settings.unified_limits(lab.layout, endpoint.id))
    lab.on_host(f"{_LIB}; lab_nvidia mdev")
    lab.cloud.restart_compute()
    lab.cloud.restart_control(overlay)
    yield keystone_limits
    lab.clean()
    lab.cloud.restart_control()
    lab.on_host(f"{_LIB}; lab_nvidia off")
    lab.cloud.restart_compute()


@pytest.fixture
def own(limits: Limits) -> Iterator[Limits]:
    """Return the same, with room for all but accelerators."""
    limits.forget()
    limits.register(_OTHERS)
    yield limits
    limits.forget()


@pytest.fixture
def flavor(lab: Site, own: Limits) -> Any:
    """Return a flavor that takes one vGPU, a quarter of the T4."""
    return vgpu(lab, 4)


def vgpu(lab: Site, gib: int) -> Any:
    """Create a flavor for one vGPU of the T4."""
    specs = {
        "resources_A__VGPU": "1",
        "resources_A__CUSTOM_GPU_MEMORY_MB": str(gib * 1024),
        f"trait_A__CUSTOM_VGPU_NVIDIA_T4_{gib}Q": "required",
    }
    return lab.flavor(f"quota-{gib}", **specs)


def used(lab: Site) -> int:
    """Return how many vGPUs are allocated in placement."""
    return sum(
        resources.get(VGPU, 0)
        for server in lab.api.compute.servers()
        for resources in lab.allocations(server).values()
    )


def fill(lab: Site, flavor: Any, number: int) -> list[Any]:
    """Return so many servers, ACTIVE."""
    requested = [lab.request(f"e2e-quota-{n}", flavor) for n in range(number)]
    servers = [lab.await_build(server) for server in requested]
    assert [server.status for server in servers] == ["ACTIVE"] * number, [
        fault(server) for server in servers
    ]
    return servers


def over(name: str, limit: int, usage: int, delta: int) -> str:
    """Return what nova answers who asks for too much of a class."""
    return (
        f"Resource class:{name} is over limit of {limit} due to current"
        f" usage {usage} and delta {delta}"
    )


def test_the_fourth_server_is_refused_at_three(
    lab: Site, own: Limits, flavor: Any
) -> None:
    own.register({f"class:{VGPU}": 10})
    own.limit(f"class:{VGPU}", 3)
    fill(lab, flavor, 3)
    assert used(lab) == 3
    inventory = lab.providers()[T4].inventories[MEMORY]
    assert inventory["total"] - inventory["reserved"] == FITTING * SIZE

    with pytest.raises(exceptions.ForbiddenException) as refused:
        lab.request("e2e-quota-fourth", flavor)
    assert f"Project {own.project_id} is over a limit" in str(refused.value)
    assert over(VGPU, 3, 3, 1) in str(refused.value)
    assert len(list(lab.api.compute.servers())) == 3

    # It was not the host: with a limit of four there is room.
    own.forget()
    own.register({**_OTHERS, f"class:{VGPU}": FITTING})
    lab.boot("e2e-quota-fourth", flavor)
    assert used(lab) == FITTING


def test_a_resize_needs_both_and_many_get_what_is_left(
    lab: Site, own: Limits, flavor: Any
) -> None:
    # VGPU has no limit here: an unregistered resource is unlimited.
    own.register({f"class:{MEMORY}": 2 * SIZE})
    (server,) = fill(lab, flavor, 1)
    with pytest.raises(exceptions.ForbiddenException) as refused:
        lab.api.compute.resize_server(server, vgpu(lab, 8))
    assert over(MEMORY, 2 * SIZE, SIZE, 2 * SIZE) in str(refused.value)

    lab.api.compute.create_server(
        name="e2e-quota-many",
        flavor_id=flavor.id,
        image_id=server.image.id,
        networks="none",
        min_count=1,
        max_count=3,
    )
    made = [s for s in lab.api.compute.servers() if s.id != server.id]
    assert len(made) == 1
    assert lab.await_build(made[0]).status == "ACTIVE"
    assert used(lab) == 2

    own.forget()
    own.register({**_OTHERS, f"class:{VGPU}": 0})
    with pytest.raises(exceptions.ForbiddenException) as refused:
        lab.request("e2e-quota-none", flavor)
    assert over(VGPU, 0, 2, 1) in str(refused.value)

    own.register({f"class:{FPGA}": 0})
    region = lab.flavor("quota-fpga", resources_A__FPGA="1")
    with pytest.raises(exceptions.ForbiddenException) as refused:
        lab.request("e2e-quota-fpga", region)
    assert over(FPGA, 0, 0, 1) in str(refused.value)
