# SPDX-License-Identifier: Apache-2.0
"""The guest's NUMA cells are those that Nova chooses."""

import copy
from typing import Any

import pytest

pytest.importorskip("nova", reason="cells are objects of Nova")

from nova import context, objects
from nova.objects import base, fields
from nova.scheduler import host_manager
from oslo_utils.fixture import uuidsentinel as uuids

from filters.fit import numa, numa_cells

objects.register_all()

CANDIDATE = {
    "allocations": {uuids.root: {"resources": {"VCPU": 1}}},
    "mappings": {"": [uuids.root]},
}
BOTH = frozenset({0, 1})


def cell(number: int, **fields: Any) -> Any:
    """Return a cell with four CPUs, two of them for pinned guests."""
    first = number * 4
    defaults: dict[str, Any] = {
        "id": number,
        "socket": number,
        "cpuset": {first, first + 1},
        "pcpuset": {first + 2, first + 3},
        "memory": 1024,
        "cpu_usage": 0,
        "memory_usage": 0,
        "pinned_cpus": set(),
        "siblings": [{first + n} for n in range(4)],
        "mempages": [
            objects.NUMAPagesTopology(
                size_kb=4, total=262144, used=0, reserved=0
            )
        ],
        "network_metadata": objects.NetworkMetadata(
            physnets=set(), tunneled=False
        ),
    }
    return objects.NUMACell(**{**defaults, **fields})


def host(*cells: Any) -> Any:
    state = host_manager.HostState("host", "host", uuids.cell)
    state.cpu_allocation_ratio = 1.0
    state.ram_allocation_ratio = 1.0
    if cells:
        state.numa_topology = objects.NUMATopology(cells=list(cells))
    return state


def guest_cell(number: int, cpus: int, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "id": number,
        "cpuset": set(range(cpus)),
        "pcpuset": set(),
        "memory": 256,
    }
    return objects.InstanceNUMACell(**{**defaults, **fields})


def pinned(number: int, *cpus: int) -> Any:
    return guest_cell(
        number,
        0,
        pcpuset=set(cpus),
        cpu_policy=fields.CPUAllocationPolicy.DEDICATED,
    )


def spec(*cells: Any, vcpus: int = 1, memory_mb: int = 256) -> Any:
    topology = None
    if cells:
        topology = objects.InstanceNUMATopology(cells=list(cells))
    return objects.RequestSpec(
        context.get_admin_context(),
        flavor=objects.Flavor(
            vcpus=vcpus, memory_mb=memory_mb, extra_specs={}
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid=uuids.server,
        numa_topology=topology,
        pci_requests=None,
    )


def read(state: Any, request_spec: Any) -> numa.Cells:
    return numa_cells.read_cells(state, request_spec, CANDIDATE)


@pytest.mark.parametrize("cells", [(), (cell(0),)])
@pytest.mark.parametrize("guest", [(), (guest_cell(0, 1),)])
def test_cells_of_a_host_with_one_cell_are_unknown(
    cells: tuple[Any, ...], guest: tuple[Any, ...]
) -> None:
    assert read(host(*cells), spec(*guest)) == numa.UNKNOWN_CELLS


def test_a_guest_without_topology_may_use_cells_with_room() -> None:
    busy = cell(1, memory_usage=800)

    assert read(host(cell(0), cell(1)), spec()) == numa.Cells(
        present=BOTH, spacious=BOTH
    )
    assert read(host(cell(0), busy), spec()).spacious == {0}
    assert read(host(cell(0), cell(1)), spec(vcpus=4)).spacious == BOTH
    assert not read(host(cell(0), cell(1)), spec(vcpus=5)).spacious
    assert not read(host(cell(0), cell(1)), spec(memory_mb=1025)).spacious


@pytest.mark.parametrize(("busy", "chosen"), [(None, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("guest", [guest_cell(0, 2), pinned(0, 0, 1)])
def test_nova_chooses_the_cell_of_a_guest_with_one(
    guest: Any, busy: int | None, chosen: int
) -> None:
    cells = [cell(n, memory_usage=800 if n == busy else 0) for n in (0, 1)]
    request_spec = spec(guest, vcpus=2)

    assert read(host(*cells), request_spec) == numa.Cells(
        present=BOTH, chosen=frozenset({chosen})
    )


def test_pinned_cpus_must_be_free() -> None:
    taken = cell(0, pinned_cpus={2})

    cells = read(host(taken, cell(1)), spec(pinned(0, 0, 1), vcpus=2))

    assert cells.chosen == frozenset({1})


def test_a_guest_with_two_cells_gets_two() -> None:
    request_spec = spec(guest_cell(0, 1), guest_cell(1, 1), vcpus=2)

    assert read(host(cell(0), cell(1)), request_spec).chosen == BOTH


def test_cells_of_a_guest_that_fits_nowhere_are_unknown() -> None:
    assert (
        read(host(cell(0), cell(1)), spec(guest_cell(0, 3), vcpus=3))
        == numa.UNKNOWN_CELLS
    )
    crowded = host(cell(0, pinned_cpus={2}), cell(1, pinned_cpus={6}))
    assert read(crowded, spec(pinned(0, 0, 1), vcpus=2)) == numa.UNKNOWN_CELLS


def test_request_and_host_are_not_changed() -> None:
    state, request_spec = (
        host(cell(0), cell(1)),
        spec(pinned(0, 0, 1), vcpus=2),
    )
    before = copy.deepcopy((state.numa_topology, request_spec.numa_topology))

    first, second = read(state, request_spec), read(state, request_spec)

    assert first == second
    for then, now in zip(
        before, (state.numa_topology, request_spec.numa_topology), strict=True
    ):
        assert base.obj_equal_prims(then, now)


def test_physical_networks_are_passed_to_nova() -> None:
    request_spec = spec(guest_cell(0, 1))
    request_spec.network_metadata = objects.NetworkMetadata(
        physnets={"net"}, tunneled=False
    )
    wired = objects.NetworkMetadata(physnets={"net"}, tunneled=False)

    cells = read(host(cell(0), cell(1, network_metadata=wired)), request_spec)

    assert cells.chosen == frozenset({1})
