# SPDX-License-Identifier: Apache-2.0
"""Simulation of a request for a bare-metal node, by Placement's answer.

Such a request has no accelerator group: its resource class and its traits are
those of the whole node. Nova's filters see nothing that Placement does not.
"""

from collections.abc import Sequence

from filters.fit import no_candidates
from nova_accel.inventory import node_counts
from nova_accel.model import flavors
from placement_sync.client import provider_records
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import offered_devices

_NOTE = "Nova's filters are not replayed"


def find_group(
    simulated: simulation.SimulatedRequest,
    devices: Sequence[offered_devices.OfferedDevice],
) -> flavors.RequestGroup | None:
    """Return the request for a node, None if it is for none.

    :param devices: all devices of the cloud, bare-metal nodes included.
    """
    groups = flavors.parse_groups(simulated.specs)
    group = next((g for g in groups if not g.suffix), None)
    if group is None:
        return None
    classes = {name for d in devices if d.counts for name in d.capacities}
    has_class = any(n in classes for n, a in group.resources.items() if a)
    has_count = any(map(node_counts.parse_count, group.required))
    return group if has_class or has_count else None


def simulate(
    get: provider_records.Get,
    simulated: simulation.SimulatedRequest,
    group: flavors.RequestGroup,
    devices: Sequence[offered_devices.OfferedDevice],
) -> simulation.SimulationResult:
    """Return the nodes that Placement offers, and reasons for the others.

    :raises ServiceError: Placement can't be queried.
    :raises RejectedError: Placement rejects the request.
    """
    candidates, unknown = simulation.fetch_candidates(get, simulated)
    notes = (*([f"no node ever had {unknown}"] if unknown else []), _NOTE)
    offered = {uuid for c in candidates for uuid in c["allocations"]}
    return simulation.SimulationResult(
        hosts=tuple(
            _judge(node, group, is_offered=node.uuid in offered)
            for node in devices
            if node.counts
        ),
        notes=notes,
    )


def _judge(
    node: offered_devices.OfferedDevice,
    group: flavors.RequestGroup,
    *,
    is_offered: bool,
) -> simulation.HostVerdict:
    why = "" if is_offered else _explain_absence(node, group)
    card = simulation.CardVerdict(
        name=node.name,
        uuid=node.uuid,
        verdict=simulation.FITS if is_offered else simulation.LEFT_OUT,
        why=why,
    )
    return simulation.HostVerdict(
        name=node.host,
        uuid=node.uuid,
        fits=int(is_offered),
        refused=0,
        cards=(card,),
    )


def _explain_absence(
    node: offered_devices.OfferedDevice, group: flavors.RequestGroup
) -> str:
    return (
        no_candidates.describe_missing(group, node.traits, node.capacities)
        or "it lacks something else that the flavor asks for: a node has no"
        " VCPU, MEMORY_MB or DISK_GB, so the flavor needs resources:VCPU=0,"
        " resources:MEMORY_MB=0 and resources:DISK_GB=0"
    )
