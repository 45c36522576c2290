# SPDX-License-Identifier: Apache-2.0
"""Reader of the stock of all flavors, from Placement and Nova.

Requests: those of ``cloud.read``, four listings of Nova, one query of
allocation candidates for each flavor, and one to Nova for each private
flavor.
"""

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Mapping

from nova_accel import errors
from placement_sync.client import nova_api, rest
from placement_sync.fleet.devices import fleet_query
from placement_sync.fleet.explain import (
    capacity_command,
    node_simulation,
    server_request,
    simulation,
)
from placement_sync.fleet.flavors import cloud, flavor_specs, offered_devices
from placement_sync.fleet.stock import stock_file, stock_levels


@dataclasses.dataclass(frozen=True, slots=True)
class _HostStock:
    """Starts that exhaust a host, at least, and its servers, at most."""

    starts: int
    at_most: int


_Hosts = Mapping[str, _HostStock]
# Projects that may use a host, by the uuid of its node; others are not in it.
_Owners = Mapping[str, frozenset[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StockReader:
    """Reader with the promise of its levels; see ``CloudStock``."""

    placement: rest.RestClient
    compute: rest.RestClient
    types: offered_devices.VgpuTypes
    max_age_s: float
    starts: int
    number_roles: tuple[str, ...] = ()

    def read(
        self, before: stock_file.CloudStock | None
    ) -> stock_file.CloudStock:
        """Return the stock of the flavors that request accelerators.

        :param before: the last stock, for the times of its levels.
        :raises ServiceError: Placement or Nova can't be read.
        """
        # Before the requests: no answer is older.
        now = datetime.datetime.now(datetime.UTC)
        listed = sorted(
            cloud.list_flavors(self.compute), key=lambda each: each.name
        )
        query = fleet_query.FleetQuery(
            reports=nova_api.list_services(self.compute)
        )
        offered = cloud.read(self.placement, query.select)
        owners = _read_owners(self.compute)
        largest = stock_levels.find_largest(listed)
        stock = stock_file.CloudStock(
            as_of=now.isoformat(timespec="seconds"),
            max_age_s=self.max_age_s,
            starts=self.starts,
            number_roles=self.number_roles,
        )
        old = {each.id: each for each in before.flavors} if before else {}
        flavors = []
        for flavor in listed:
            hosts = self._judge_choices(flavor, offered, largest)
            if hosts is not None:
                stocks = self._sum_up(flavor, hosts, owners)
                flavors.append(
                    stock_file.FlavorStock(
                        id=flavor.id,
                        name=flavor.name,
                        is_public=flavor.is_public,
                        projects=self._list_projects(flavor),
                        stocks=stock_file.add_times(
                            stocks, old.get(flavor.id), stock.as_of
                        ),
                    )
                )
        return dataclasses.replace(stock, flavors=tuple(flavors))

    def _list_projects(self, flavor: cloud.Flavor) -> tuple[str, ...]:
        if flavor.is_public:
            return ()
        return cloud.list_access(self.compute, flavor.id)

    def _judge_choices(
        self,
        flavor: cloud.Flavor,
        offered: offered_devices.Cloud,
        largest: stock_levels.LargestStart,
    ) -> _Hosts | None:
        """Return the hosts that serve a choice of a flavor; see ``_judge``.

        A host is exhausted for all choices together.
        """
        try:
            choices = cloud.list_choices(flavor, self.types.catalog)
        except errors.MalformedError:
            return {}
        sums: dict[str, _HostStock] = {}
        for _, choice in choices:
            hosts = self._judge(choice, offered, largest)
            if hosts is None:
                return None
            for uuid, stock in hosts.items():
                last = sums.get(uuid, _HostStock(0, 0))
                sums[uuid] = _HostStock(
                    max(last.starts, stock.starts),
                    last.at_most + stock.at_most,
                )
        return sums

    def _judge(
        self,
        flavor: cloud.Flavor,
        offered: offered_devices.Cloud,
        largest: stock_levels.LargestStart,
    ) -> _Hosts | None:
        """Return the hosts that serve a flavor now, by uuid.

        None for a flavor without accelerators. One that Placement rejects
        is served by no host.
        """
        simulated = simulation.SimulatedRequest(
            specs=flavor.specs, needs=flavor.needs_with_disk
        )
        try:
            contents = flavor_specs.read(flavor.specs)
            if not contents.groups:
                return self._judge_nodes(simulated, offered)
            result = simulation.simulate(
                self.placement.fetch,
                simulated,
                simulation.SimulationContext(
                    cloud=offered, disabled=offered.disabled
                ),
                self.types,
            )
        except (errors.MalformedError, simulation.RejectedError):
            return {}
        capacity = capacity_command.compute(
            contents, offered, flavor.needs, result, self.types.geometry
        )
        cards = {device.uuid: device.card for device in offered.devices}
        count_starts = functools.partial(
            stock_levels.count_starts, flavor, cards, largest
        )
        return {
            host.uuid: _HostStock(
                count_starts(host, offered.hosts.get(host.uuid, {})),
                capacity.by_host[host.name],
            )
            for host in result.hosts
            if host.name in capacity.by_host
        }

    def _judge_nodes(
        self,
        simulated: simulation.SimulatedRequest,
        offered: offered_devices.Cloud,
    ) -> _Hosts | None:
        """Return the bare-metal nodes that serve a request, None for none."""
        group = node_simulation.find_group(simulated, offered.devices)
        if group is None:
            return None
        result = node_simulation.simulate(
            self.placement.fetch, simulated, group, offered.devices
        )
        return {
            node.uuid: _HostStock(1, 1) for node in result.hosts if node.fits
        }

    def _sum_up(
        self, flavor: cloud.Flavor, hosts: _Hosts, owners: _Owners
    ) -> dict[str, tuple[stock_levels.StockLevel, int]]:
        """Return level and most servers by project with hosts of its own."""
        own = frozenset[str]().union(*owners.values())
        sums = {}
        for project in (stock_file.OTHERS, *sorted(own)):
            usable = [
                stock
                for uuid, stock in hosts.items()
                if uuid not in owners or project in owners[uuid]
            ]
            starts = sum(stock.starts for stock in usable)
            if stock_levels.has_other_judges(flavor.specs):
                starts = min(starts, 1)
            level = stock_levels.find_level(starts, self.starts)
            sums[project] = level, sum(stock.at_most for stock in usable)
        return sums


def _read_owners(compute: rest.RestClient) -> _Owners:
    """Return the projects of hosts that are not for all."""
    aggregates = server_request.read_aggregates(compute)
    return {
        uuid: frozenset.intersection(*tenants)
        for uuid, host in nova_api.list_hypervisors(compute)
        if (tenants := list(_list_tenants(aggregates, host)))
    }


def _list_tenants(
    aggregates: list[server_request.Aggregate], host: str
) -> Iterator[frozenset[str]]:
    for aggregate in aggregates:
        if host in aggregate.hosts and aggregate.tenants:
            yield aggregate.tenants
