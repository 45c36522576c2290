# SPDX-License-Identifier: Apache-2.0
"""nova-compute of a small host with two NUMA nodes that runs nothing.

Nova's own driver for tests says of each host that it has a thousand
processors and no NUMA nodes.
"""

import pathlib
import sys
from typing import Any

import nova.virt
from nova import objects
from nova.cmd import compute
from nova.virt import fake

_NODES = 2
_CPUS = 8
_MIB = 1024
_PAGE_KIB = 4


class SimulatedDriver(fake.FakeDriverWithoutFakeNodes):  # type: ignore[misc]
    """Each NUMA node has 8 processors and 1 GiB."""

    vcpus = _NODES * _CPUS
    memory_mb = _NODES * _MIB
    local_gb = 100

    def get_available_resource(self, nodename: str) -> Any:
        """Return what Nova's driver says, and the NUMA nodes."""
        cells = [_cell(number) for number in range(_NODES)]
        topology = objects.NUMATopology(cells=cells)
        resources = super().get_available_resource(nodename)
        return {**resources, "numa_topology": topology._to_json()}


def _cell(number: int) -> Any:
    cpus = set(range(number * _CPUS, (number + 1) * _CPUS))
    return objects.NUMACell(
        id=number,
        socket=number,
        cpuset=cpus,
        pcpuset=set(),
        memory=_MIB,
        cpu_usage=0,
        memory_usage=0,
        pinned_cpus=set(),
        siblings=[{cpu} for cpu in cpus],
        mempages=[
            objects.NUMAPagesTopology(
                size_kb=_PAGE_KIB,
                total=_MIB * 1024 // _PAGE_KIB,
                used=0,
                reserved=0,
            )
        ],
        network_metadata=objects.NetworkMetadata(
            physnets=set(), tunneled=False
        ),
    )


if __name__ == "__main__":
    # Nova looks for compute_driver nowhere else.
    nova.virt.__path__.append(str(pathlib.Path(__file__).parent))
    sys.exit(compute.main())
