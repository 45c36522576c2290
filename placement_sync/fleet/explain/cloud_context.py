# SPDX-License-Identifier: Apache-2.0
"""Clients of a cloud for commands about flavors."""

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from placement_sync.cli import progress
from placement_sync.client import rest
from placement_sync.fleet.cli import fleet_command
from placement_sync.fleet.devices import fleet_reader
from placement_sync.fleet.explain import explain_command, simulation
from placement_sync.fleet.flavors import (
    cloud,
    flavor_rules,
    flavor_specs,
    offered_devices,
)

# Returns the known reasons of drained devices by uuid; see CloudReader.
DescribeDrains = Callable[
    [Iterable[offered_devices.OfferedDevice]], Mapping[str, str]
]


def open_cloud(arguments: argparse.Namespace) -> "CloudContext":
    """Return the clients of the arguments.

    :raises AcceleratorError: an argument can't be used.
    """
    reader = fleet_command.CloudReader(arguments)
    return CloudContext(
        reader.placement,
        reader.compute,
        reader.types,
        reader.options.settings.rules.default.series,
        reader.describe_drains,
    )


class CloudContext:
    """Clients of Placement and Nova, the vGPU types, and licensed series."""

    def __init__(
        self,
        placement: rest.RestClient,
        compute: rest.RestClient,
        types: offered_devices.VgpuTypes,
        series: frozenset[str],
        describe_drains: DescribeDrains,
    ) -> None:
        self.placement = placement
        self.compute = compute
        self.types = types
        self.series = series
        self.describe_drains = describe_drains

    def read_devices(self) -> offered_devices.Cloud:
        """Return all devices; warn if the hosts' reports can't be read.

        :raises ServiceError: Placement can't be read.
        """
        offered, gap = fleet_reader.read_cloud(self.placement, self.compute)
        if gap:
            progress.warn(f"not known: {gap}")
        return offered

    def explain_rules(self, contents: flavor_specs.FlavorContents) -> str:
        """Return why no host can ever serve a flavor, or ""."""
        return flavor_rules.explain_contradiction(
            contents, self.types
        ) or flavor_rules.explain_license(contents, self.series)

    def warn_of_address_bits(
        self, flavor: cloud.Flavor, specs: Mapping[str, str]
    ) -> None:
        """Warn of address bits that are too few for whole GPUs."""
        advice = flavor_rules.advise_address_bits(
            flavor_specs.read(specs),
            specs,
            flavor.needs.get("MEMORY_MB", 0),
            self.types,
        )
        if advice:
            progress.warn(advice)

    def explain_refusal(
        self,
        flavor: cloud.Flavor,
        specs: Mapping[str, str],
        offered: offered_devices.Cloud,
    ) -> str:
        """Return why no host can serve a flavor now, or "".

        :param specs: its extra specs, in place of those that Nova has.
        :raises ServiceError: Placement can't be read.
        """
        flavor = dataclasses.replace(flavor, specs=specs)
        refusals = []
        for _, choice in cloud.list_choices(flavor, self.types.catalog):
            simulated = simulation.SimulatedRequest(
                specs=choice.specs, needs=flavor.needs_with_disk
            )
            refusal = ""
            try:
                if simulated.accelerators.groups:
                    refusal = explain_command.simulate(
                        self.placement, simulated, offered
                    ).refusal
            except simulation.RejectedError as error:
                refusal = str(error)
            if not refusal:
                return ""
            refusals.append(refusal)
        return refusals[0]
