# SPDX-License-Identifier: Apache-2.0
"""The guest's cells are chosen for the PCI devices of each candidate."""

import itertools
from typing import Any

import pytest

pytest.importorskip("nova")

from nova import context, objects
from nova.objects import fields
from nova.pci import stats
from nova.scheduler import host_manager, request_filter
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter
from nova.virt import hardware
from oslo_utils.fixture import uuidsentinel as uuids

from filters import accelerator_filter, candidate_capture
from nova_accel import model
from nova_accel.model import names
from tests.support.scheduler import scheduled
from tests.unit.filters.fit.test_numa_cells import cell, guest_cell

objects.register_all()
# The order of the uuids is that of the cards.
CARDS = [
    "00000000-0000-0000-0000-00000000000a",
    "00000000-0000-0000-0000-00000000000b",
]
NICS = [
    "10000000-0000-0000-0000-00000000000a",
    "10000000-0000-0000-0000-00000000000b",
]


def pool(node: int, rp: str) -> Any:
    return objects.PciDevicePool(
        product_id="1572",
        vendor_id="8086",
        numa_node=node,
        count=1,
        tags={"dev_type": "type-PCI", "rp_uuid": rp},
    )


def spec() -> Any:
    request = objects.InstancePCIRequest(
        count=1,
        request_id=uuids.req,
        spec=[{"vendor_id": "8086", "product_id": "1572"}],
        alias_name="nic",
        numa_policy=fields.PCINUMAAffinityPolicy.REQUIRED,
    )
    extra = scheduled.vgpus("L40S-8Q", numa_policy="required")
    return objects.RequestSpec(
        context.get_admin_context(),
        flavor=objects.Flavor(vcpus=1, memory_mb=256, extra_specs=extra),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid=uuids.server,
        numa_topology=objects.InstanceNUMATopology(cells=[guest_cell(0, 1)]),
        pci_requests=objects.InstancePCIRequests(requests=[request]),
        scheduler_hints={},
    )


def candidate(card: str, nic: str) -> dict[str, Any]:
    return {
        "allocations": {
            uuids.root: {"resources": {"VCPU": 1, "MEMORY_MB": 256}},
            card: {"resources": scheduled.charges("L40S-8Q")},
            nic: {"resources": {"CUSTOM_PCI_8086_1572": 1}},
        },
        "mappings": {
            "": [uuids.root],
            "_A": [card],
            f"{uuids.req}-0": [nic],
        },
    }


def state(candidates: list[Any]) -> Any:
    host_state = host_manager.HostState("host", "host", uuids.cell)
    host_state.uuid = uuids.root
    host_state.cpu_allocation_ratio = host_state.ram_allocation_ratio = 1.0
    host_state.numa_topology = objects.NUMATopology(cells=[cell(0), cell(1)])
    host_state.pci_stats = stats.PciDeviceStats(
        host_state.numa_topology,
        objects.PciDevicePoolList(
            objects=[pool(0, NICS[0]), pool(1, NICS[1])]
        ),
    )
    host_state.allocation_candidates = candidates
    host_state.limits = {}
    return host_state


def capture(request_spec: Any, cards: dict[str, int]) -> None:
    """Give the summaries of empty cards on NUMA nodes to the filter."""
    candidate_capture.store(
        request_spec,
        {
            uuid: {
                "resources": {
                    name: {"capacity": total, "used": 0}
                    for name, total in scheduled.capacity(
                        "L40S", model.Layout.MIXED
                    ).items()
                },
                "traits": [
                    names.OWNER_TRAIT,
                    names.layout_trait("mixed"),
                    *scheduled.offers("L40S", model.Layout.MIXED),
                    f"{names.NUMA_PREFIX}{node}",
                ],
                "parent_provider_uuid": uuids.root,
                "root_provider_uuid": uuids.root,
            }
            for uuid, node in cards.items()
        },
    )


def true_cells(host: Any, request_spec: Any, candidate: Any) -> set[int]:
    """Return the cells that Nova gives to the guest with this candidate."""
    fitted = hardware.numa_fit_instance_to_host(
        host.numa_topology,
        request_spec.numa_topology.obj_clone(),
        limits=objects.NUMATopologyLimits(
            cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0
        ),
        pci_requests=request_spec.pci_requests.requests,
        pci_stats=host.pci_stats,
        provider_mapping=candidate["mappings"],
    )
    return {c.id for c in fitted.cells}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_suitable_host_is_not_refused(monkeypatch: Any, order: Any) -> None:
    """Only card 1 (node 1) has room; NICs on both nodes are free."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    host = state([candidate(CARDS[1], NICS[n]) for n in order])
    request_spec = spec()
    assert numa_topology_filter.NUMATopologyFilter().host_passes(
        host, request_spec
    )
    assert len(host.allocation_candidates) == 2
    tested = accelerator_filter.AcceleratorFilter()
    capture(request_spec, {CARDS[1]: 1})

    assert list(tested.filter_all([host], request_spec)) == [host]
    first = host.allocation_candidates[0]
    assert true_cells(host, request_spec, first) == {1}


@pytest.mark.slow
def test_a_guest_is_on_the_node_of_its_card(monkeypatch: Any) -> None:
    """Both cards have room: the first candidate satisfies numa_policy."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    # pairs = [(1, 1), (0, 1), (1, 0)]
    for pairs in itertools.permutations(itertools.product((0, 1), (0, 1))):
        host = state([candidate(CARDS[c], NICS[p]) for c, p in pairs])
        request_spec = spec()
        nova = numa_topology_filter.NUMATopologyFilter()
        assert nova.host_passes(host, request_spec)
        tested = accelerator_filter.AcceleratorFilter()
        capture(request_spec, {CARDS[0]: 0, CARDS[1]: 1})
        assert list(tested.filter_all([host], request_spec)) == [host]
        first = host.allocation_candidates[0]
        card = next(u for u in first["allocations"] if u in CARDS)
        assert true_cells(host, request_spec, first) == {CARDS.index(card)}, (
            pairs
        )


def consume(host: Any, request_spec: Any, candidate: Any) -> None:
    """Consume a candidate's resources, as nova-scheduler does."""
    pci_requests = request_spec.pci_requests.requests
    fitted = hardware.numa_fit_instance_to_host(
        host.numa_topology,
        request_spec.numa_topology.obj_clone(),
        pci_requests=pci_requests,
        pci_stats=host.pci_stats,
        provider_mapping=candidate["mappings"],
    )
    host.numa_topology = hardware.numa_usage_from_instance_numa(
        host.numa_topology, fitted
    )
    host.pci_stats.apply_requests(
        pci_requests, candidate["mappings"], fitted.cells
    )


def test_a_restored_candidate_must_fit_the_cells(monkeypatch: Any) -> None:
    """Nova's filters do not see restored candidates."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    nics = {NICS[0]: 0, NICS[1]: 0, "1" + NICS[0][1:-1] + "c": 1}
    host = state([candidate(c, n) for c, n in itertools.product(CARDS, nics)])
    host.numa_topology = objects.NUMATopology(
        cells=[cell(n, memory=256) for n in (0, 1)]
    )
    host.pci_stats = stats.PciDeviceStats(
        host.numa_topology,
        objects.PciDevicePoolList(
            objects=[pool(node, nic) for nic, node in nics.items()]
        ),
    )
    request_spec = spec()
    tested = accelerator_filter.AcceleratorFilter()
    capture(request_spec, {CARDS[0]: 0, CARDS[1]: 1})

    for server in (uuids.server, uuids.later_server):
        request_spec.instance_uuid = server
        assert pci_passthrough_filter.PciPassthroughFilter().host_passes(
            host, request_spec
        )
        assert numa_topology_filter.NUMATopologyFilter().host_passes(
            host, request_spec
        )
        assert list(tested.filter_all([host], request_spec)) == [host]
        for restored in host.allocation_candidates:
            (card,) = restored["mappings"]["_A"]
            assert true_cells(host, request_spec, restored) == {
                CARDS.index(card)
            }
        consume(host, request_spec, host.allocation_candidates[0])
