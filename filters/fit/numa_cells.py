# SPDX-License-Identifier: Apache-2.0
"""NUMA cells of a host, as nova-scheduler knows them, for one guest."""

from collections.abc import Callable, Sequence
from typing import Any

from nova import objects
from nova.virt import hardware

from filters import provider_facts
from filters.fit import numa

_SEVERAL = 2


def read_cells(
    host: Any, spec: Any, candidate: provider_facts.Candidate
) -> numa.Cells:
    """Return the cells of a host, and which of them the guest will get.

    For a guest with a NUMA topology Nova's own choice is asked for: the
    host makes the same one, of the same numbers, unless another guest
    comes in between. Where it has none for this guest, nothing is told:
    Nova's NUMATopologyFilter refuses such a candidate, and ``is_left``
    one that is given back.

    :param host: a nova.scheduler.host_manager.HostState.
    :param spec: the nova.objects.RequestSpec.
    :param candidate: one of the host's, for Nova's own PCI devices.
    """
    topology = host.numa_topology
    if topology is None or len(topology.cells) < _SEVERAL:
        return numa.UNTOLD
    present = frozenset(cell.id for cell in topology.cells)
    if spec.numa_topology is None:
        return numa.Cells(present=present, roomy=_roomy(topology, spec))
    fitted = _fit(host, spec, candidate)
    if fitted is None:
        return numa.UNTOLD
    return numa.Cells(
        present=present,
        chosen=frozenset(cell.id for cell in fitted.cells),
    )


def reader_of_cells(
    host: Any, spec: Any
) -> Callable[[provider_facts.Candidate], numa.Cells]:
    """Return what tells a host's cells, a candidate's by its PCI devices."""
    ids = tuple(one.request_id for one in _pci_requests(spec))
    known: dict[tuple[Any, ...], numa.Cells] = {}

    def read(candidate: provider_facts.Candidate) -> numa.Cells:
        key = tuple(
            (name, *providers)
            for name, providers in sorted(
                candidate.get("mappings", {}).items()
            )
            if ids and name.startswith(ids)
        )
        if key not in known:
            known[key] = read_cells(host, spec, candidate)
        return known[key]

    return read


def is_left(host: Any, spec: Any, candidate: provider_facts.Candidate) -> bool:
    """Return whether a host still has the PCI devices of a candidate.

    For a guest with a NUMA topology they must be where its cells fit.
    Nova's own filters have not seen one that is given back to a host.
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


def _roomy(topology: Any, spec: Any) -> frozenset[int]:
    """Return the cells that could take a guest without topology whole."""
    return frozenset(
        cell.id
        for cell in topology.cells
        if cell.avail_memory >= spec.flavor.memory_mb
        and len(cell.cpuset | cell.pcpuset) >= spec.flavor.vcpus
    )


def _fit(host: Any, spec: Any, candidate: provider_facts.Candidate) -> Any:
    """Return the guest's topology on the host's cells, as Nova fits it.

    What Nova fits it changes, so a copy is given to it.
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
