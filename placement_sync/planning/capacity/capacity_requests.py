# SPDX-License-Identifier: Apache-2.0
"""Requests of a plan of capacity: of flavors of Nova, and of profiles."""

import argparse
import dataclasses
from collections.abc import Sequence

from nova_accel import errors
from nova_accel.cli import command_manager
from nova_accel.model import flavors
from placement_sync.client import nova_api, provider_records
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import cloud, flavor_specs, lookup
from placement_sync.planning.capacity import (
    capacity_plan,
    evictions,
    plan_sources,
)

FLAVOR, PROFILE = "--flavor", "--profile"


@dataclasses.dataclass(slots=True)
class RequestWords:
    """Request of the arguments: its option, its name, its ``--count``."""

    option: str
    name: str
    count: int | None = None


def build_request(
    words: RequestWords,
    arguments: argparse.Namespace,
    sources: plan_sources.PlanSources,
) -> capacity_plan.CapacityRequest:
    """Return a request of the arguments.

    :raises MalformedError: there is no such flavor or profile.
    """
    flavor = (
        _find_flavor(words.name, sources)
        if words.option == FLAVOR
        else _build_flavor(words.name, arguments, sources)
    )
    if not flavor_specs.read(flavor.specs).groups:
        raise command_manager.UsageError(
            f"flavor {flavor.name} requests no accelerators; see `openstack"
            " accel flavor set`"
        )
    choices = evictions.build_choices(
        dataclasses.replace(flavor, needs=flavor.needs_with_disk),
        sources.planned,
    )
    return capacity_plan.CapacityRequest(
        name=flavor.name,
        count=words.count,
        request=capacity_plan.PlacementRequest(
            choices=choices, excluded=_find_excluded(choices, sources)
        ),
        flavor=nova_api.ServerFlavor(
            vcpus=flavor.needs.get("VCPU", 0),
            memory_mb=flavor.needs.get("MEMORY_MB", 0),
            root_gb=flavor.disk_gb,
            other_gb=0,
            extra_specs=flavor.specs,
            name=flavor.name,
        ),
    )


def _find_flavor(name: str, sources: plan_sources.PlanSources) -> cloud.Flavor:
    if sources.compute is None:
        raise command_manager.UsageError(
            f"--flavor {name} is read from Nova, and with --from no cloud is"
            " read; name a --profile"
        )
    return cloud.find_flavor(sources.compute, name)


def _build_flavor(
    profile: str,
    arguments: argparse.Namespace,
    sources: plan_sources.PlanSources,
) -> cloud.Flavor:
    """Return a flavor with one device of a profile.

    :raises NotOfferedError: the profile is unknown.
    :raises MalformedError: an extra spec is not KEY=VALUE.
    """
    devices = lookup.find_profile(
        lookup.ProfileQuery(profile=profile),
        sources.planned.build_fleet().cloud,
        sources.types,
    )
    extra = dict(map(_parse_pair, arguments.extra_spec))
    change = flavor_specs.plan(
        extra, flavor_specs.FlavorRequest(devices=devices, group="PLAN")
    )
    return cloud.Flavor(
        id="",
        name=profile,
        specs=change.specs,
        needs={
            "VCPU": arguments.vcpus or 0,
            "MEMORY_MB": arguments.ram or 0,
        },
        disk_gb=arguments.disk or 0,
    )


def _parse_pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key.strip() and sign):
        raise errors.MalformedError("--extra-spec", text, "KEY=VALUE")
    return key.strip(), value.strip()


def _find_excluded(
    choices: Sequence[simulation.SimulatedRequest],
    sources: plan_sources.PlanSources,
) -> dict[str, str]:
    """Return the hosts that lack a trait of the group without a suffix.

    Only Placement has the traits of compute nodes: hosts that do not exist
    have all of them.

    :raises ServiceError: Placement can't be read.
    """
    if sources.placement is None:
        return {}
    excluded: dict[str, str] = {}
    for simulated in choices[:1]:
        for group in flavors.parse_groups(simulated.specs):
            traits = group.required if not group.suffix else ()
            for trait in sorted(traits):
                nodes = provider_records.list_with_trait(
                    sources.placement.fetch, trait
                )
                having = {node.root or node.uuid for node in nodes}
                excluded |= dict.fromkeys(
                    sources.existing - having, f"the host lacks trait {trait}"
                )
    return excluded
