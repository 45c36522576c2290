# SPDX-License-Identifier: Apache-2.0
"""Snapshot that a plan of capacity begins with, and its changes."""

import argparse
import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel.catalog import loader
from nova_accel.inventory import wording
from placement_sync.client import provider_records, rest
from placement_sync.fleet.cli import fleet_command
from placement_sync.fleet.devices import fleet_query
from placement_sync.fleet.flavors import cloud, lookup, offered_devices
from placement_sync.planning import snapshot
from placement_sync.planning.capacity import (
    capacity_plan,
    captured_hosts,
    evictions,
    hardware,
)


class PlanSources:
    """Cloud or captured hosts of the arguments, with clients."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        #: Limits of the plan.
        self.notes: list[str] = []
        self.placement: rest.RestClient | None = None
        self.compute: rest.RestClient | None = None
        self.drains: Mapping[str, str] = {}
        if arguments.from_hosts:
            self.types = offered_devices.VgpuTypes(loader.load())
            self.planned = snapshot.CloudSnapshot(self.types)
            self._add_captured(arguments.from_hosts)
        else:
            self._read_cloud(arguments)
        #: The hosts that exist, by uuid.
        self.existing = frozenset(self.planned.hosts)

    def _add_captured(self, paths: Iterable[str]) -> None:
        for path in paths:
            present = {host.name for host in self.planned.hosts.values()}
            self.planned.add_host(captured_hosts.read(path, present))
        self.notes.append(
            "CPU and memory of captured hosts are not known, and not limited"
        )

    def _read_cloud(self, arguments: argparse.Namespace) -> None:
        reader = fleet_command.CloudReader(arguments)
        self.types = reader.types
        self.placement = reader.placement
        self.compute = reader.compute
        fleet = reader.read(fleet_query.FleetQuery())
        # Allocation candidates have no reserved units, and the bars show
        # them.
        if arguments.html:
            uuids = {device.uuid for device in fleet.devices}
            offered = cloud.read_totals(self.placement, fleet.cloud, uuids)
            fleet = dataclasses.replace(fleet, cloud=offered)
        fleet = reader.add_servers(fleet)
        self.notes += [f"not known: {gap}" for gap in fleet.gaps]
        self.drains = reader.describe_drains(fleet.devices)
        self.planned = snapshot.CloudSnapshot(self.types, fleet)

    def change(
        self, arguments: argparse.Namespace
    ) -> list[capacity_plan.EvictedServer]:
        """Add, change and remove hosts; return the servers to move.

        :raises MalformedError: an option can't be used.
        """
        catalog = self.types.catalog
        for text in arguments.add_hosts:
            added = hardware.parse_added(text, catalog)
            hardware.add_hosts(added, self.planned)
            self.notes += filter(None, [added.note])
        evicted: list[capacity_plan.EvictedServer] = []
        reader = evictions.Evictions(self.planned, self.compute)
        changes = list(map(hardware.parse_changed, arguments.set_hosts))
        for changed in changes:
            cards = hardware.find_cards(changed, self.planned)
            evicted += reader.empty_cards(cards)
            hardware.change_cards(changed, cards, self.planned)
        if changes:
            self.notes.append(
                "changed cards offer all profiles of their mode, whatever"
                " device_spec of their host says"
            )
        for name in arguments.without_hosts:
            devices = self.planned.build_fleet().devices
            root = lookup.select_host(devices, name)[0].root
            self._note_others(root)
            evicted += reader.empty_host(root)
        return evicted

    def _note_others(self, root: str) -> None:
        """Note the servers of a host that have no accelerators."""
        host = self.planned.hosts[root]
        if self.placement is None:
            return
        own = {
            holding.consumer
            for holding in self.planned.holdings
            if holding.provider in host.devices
        }
        allocations = provider_records.list_allocations(
            self.placement.fetch, root
        )
        others = {each.consumer for each in allocations} - own
        if others:
            count = wording.count_of(len(others), "server")
            self.notes.append(
                f"{count} of {host.name} without accelerators need another"
                " host, too, and are not planned"
            )
