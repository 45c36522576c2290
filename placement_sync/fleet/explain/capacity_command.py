# SPDX-License-Identifier: Apache-2.0
"""Command ``capacity show``: how many servers of a flavor fit."""

import argparse
import collections
import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel.cli import application, command_manager
from nova_accel.geometry.scheduling import vgpu_geometry
from placement_sync.cli import common_options
from placement_sync.fleet.explain import (
    cloud_context,
    explain_command,
    simulation,
)
from placement_sync.fleet.flavors import (
    cloud,
    flavor_specs,
    offered_devices,
    room,
)

_FULL = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCapacity:
    """Servers of a flavor that there is room for now, at most.

    ``by_host`` are their numbers by host, without hosts that have none.
    ``reasons`` are numbers of devices by the reason that excludes them.
    """

    by_host: Mapping[str, int]
    reasons: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_host.values())

    @property
    def largest_group(self) -> int:
        """Return how many servers fit on one host together."""
        return max(self.by_host.values(), default=0)


def compute(
    contents: flavor_specs.FlavorContents,
    offered: offered_devices.Cloud,
    needs: Mapping[str, int],
    simulated: simulation.SimulationResult,
    geometry: vgpu_geometry.VgpuGeometry,
) -> FlavorCapacity:
    """Return the capacity for a flavor.

    :param needs: amounts of a server on its compute node, by class.
    :param simulated: the result for one server of the flavor; a host
        without a fitting candidate has no room.
    """
    by_host: dict[str, int] = {}
    for host in simulated.hosts:
        devices = tuple(d for d in offered.devices if d.root == host.uuid)
        own = dataclasses.replace(offered, devices=devices)
        if host.fits and (
            count := room.count_room(contents, own, needs, geometry)
        ):
            by_host[host.name] = count
    reasons = collections.Counter(
        card.why for host in simulated.hosts for card in host.cards if card.why
    )
    return FlavorCapacity(by_host=by_host, reasons=dict(reasons.most_common()))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flavor",
        metavar="FLAVOR",
        required=True,
        help="name or id of the flavor",
    )


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the capacity for a flavor, and 1 if there is none.

    :raises MalformedError: Nova has no such flavor, or it requests no
        accelerators.
    :raises ServiceError: a service does not respond.
    :raises RejectedError: Placement rejects the flavor's groups.
    """
    context = cloud_context.open_cloud(arguments)
    flavor = cloud.find_flavor(context.compute, arguments.flavor)
    contents = flavor_specs.read(flavor.specs)
    if not contents.groups:
        raise command_manager.UsageError(
            f"flavor {flavor.name} requests no accelerators; see `openstack"
            " accel flavor set`"
        )
    offered = context.read_devices()
    drains = context.describe_drains(offered.devices)
    capacity = _add(
        compute(
            flavor_specs.read(choice.specs),
            offered,
            choice.needs,
            explain_command.simulate(
                context.placement,
                simulation.SimulatedRequest(
                    specs=choice.specs, needs=choice.needs_with_disk
                ),
                offered,
                drains=drains,
            ),
            context.types.geometry,
        )
        for _, choice in cloud.list_choices(flavor, context.types.catalog)
    )
    fields = _build_fields(flavor, capacity)
    return application.Record(
        {
            name: application.build_cell(value)
            for name, value in fields.items()
        },
        status=0 if capacity.total else _FULL,
    )


def _add(capacities: Iterable[FlavorCapacity]) -> FlavorCapacity:
    """Return the capacity for the choices of one flavor together.

    A device is blocked only for the reason of the last choice.
    """
    by_host = collections.Counter[str]()
    reasons: Mapping[str, int] = {}
    for capacity in capacities:
        by_host.update(capacity.by_host)
        reasons = capacity.reasons
    return FlavorCapacity(by_host=by_host, reasons=reasons)


def _build_fields(
    flavor: cloud.Flavor, capacity: FlavorCapacity
) -> dict[str, object]:
    return {
        "flavor": flavor.name,
        "flavor_id": flavor.id,
        "fits_now": capacity.total,
        "largest_group_on_one_host": capacity.largest_group,
        "hosts": dict(capacity.by_host),
        "blocked_by": dict(capacity.reasons),
    }


ACTION = common_options.build_cloud_action(_add_arguments, _run)
