# SPDX-License-Identifier: Apache-2.0
"""NUMA cells of a host for one guest, from Nova's HostState."""

from collections.abc import Callable, Sequence
from typing import Any

from nova import objects
from nova.virt import hardware

from filters.fit import numa, provider_facts

_SEVERAL = 2


def read_cells(
    host: Any, spec: Any, candidate: provider_facts.Candidate
) -> numa.Cells:
    """Return the cells of a host, and the guest's cells among them.

    For a guest with a NUMA topology Nova's own function chooses: the host
    makes the same choice from the same numbers, unless another guest starts
    in between. If the guest fits on no cells, UNKNOWN_CELLS is returned:
    Nova's NUMATopologyFilter rejects such a candidate, and
    ``has_pci_devices`` a restored one.

    :param host: a nova.scheduler.host_manager.HostState.
    :param spec: the nova.objects.RequestSpec.
    :param candidate: one of the host, for its PCI devices.
    """
    topology = host.numa_topology
    if topology is None or len(topology.cells) < _SEVERAL:
        return numa.UNKNOWN_CELLS
    present = frozenset(cell.id for cell in topology.cells)
    if spec.numa_topology is None:
        return numa.Cells(
            present=present, spacious=_find_spacious(topology, spec)
        )
    fitted = _fit(host, spec, candidate)
    if fitted is None:
        return numa.UNKNOWN_CELLS
    return numa.Cells(
        present=present,
        chosen=frozenset(cell.id for cell in fitted.cells),
    )


def build_cell_reader(
    host: Any, spec: Any
) -> Callable[[provider_facts.Candidate], numa.Cells]:
    """Return a function from a candidate to its cells.

    Candidates with the same PCI devices have the same cells, which are
    computed once.
    """
    ids = tuple(request.request_id for request in _pci_requests(spec))
    cached: dict[tuple[Any, ...], numa.Cells] = {}

    def read(candidate: provider_facts.Candidate) -> numa.Cells:
        key = tuple(
            (name, *providers)
            for name, providers in sorted(
                candidate.get("mappings", {}).items()
            )
            if ids and name.startswith(ids)
        )
        if key not in cached:
            cached[key] = read_cells(host, spec, candidate)
        return cached[key]

    return read


def has_pci_devices(
    host: Any, spec: Any, candidate: provider_facts.Candidate
) -> bool:
    """Return whether a host still has the PCI devices of a candidate.

    For a guest with a NUMA topology they must be on cells that fit it.
    Needed for a candidate that the filter restores to a host, because
    Nova's own filters ran before.
    """
    requests = _pci_requests(spec)
    if not requests or not host.pci_stats:
        return True
    if not host.pci_stats.support_requests(
        requests, provider_mapping=candidate.get("mappings")
    ):
        return False
    return (
        not (host.numa_topology and spec.numa_topology)
        or _fit(host, spec, candidate) is not None
    )


def _pci_requests(spec: Any) -> Sequence[Any]:
    if "pci_requests" not in spec or not spec.pci_requests:
        return ()
    return tuple(spec.pci_requests.requests)


def _find_spacious(topology: Any, spec: Any) -> frozenset[int]:
    """Return the cells with enough memory and CPUs for the whole guest."""
    return frozenset(
        cell.id
        for cell in topology.cells
        if cell.avail_memory >= spec.flavor.memory_mb
        and len(cell.cpuset | cell.pcpuset) >= spec.flavor.vcpus
    )


def _fit(host: Any, spec: Any, candidate: provider_facts.Candidate) -> Any:
    """Return the guest's topology on the host's cells, None if none fit.

    Nova modifies the topology that it fits, so it gets a copy.
    """
    requests = spec.pci_requests
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=host.cpu_allocation_ratio,
        ram_allocation_ratio=host.ram_allocation_ratio,
    )
    if "network_metadata" in spec and spec.network_metadata:
        limits.network_metadata = spec.network_metadata
    return hardware.numa_fit_instance_to_host(
        host.numa_topology,
        spec.numa_topology.obj_clone(),
        limits=limits,
        pci_requests=requests.requests if requests else None,
        pci_stats=host.pci_stats,
        provider_mapping=candidate.get("mappings"),
    )
