# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel flavor``: create, set and show flavors."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from filters.explain import explain_command, simulation
from filters.placement import queries
from nova_accel import errors
from nova_accel.cli import application
from nova_accel.model import flavors, names
from placement_sync.cli import common_options
from placement_sync.cli.fleet import fleet_command
from placement_sync.client import resource_providers, rest, tree_reader
from placement_sync.flavors import (
    cloud,
    flavor_rules,
    flavor_specs,
    flavor_text,
    lookup,
    offered_devices,
    room,
)


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flavor", metavar="FLAVOR", help="name or id of the flavor"
    )


def _add_set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_show_arguments(parser)
    target = _add_target(parser)
    target.add_argument(
        "--clear",
        action="store_true",
        help="remove all accelerators from the flavor, or those of --group",
    )
    _add_request(parser)


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flavor", metavar="NAME", help="name of the new flavor"
    )
    add_sizes(parser)
    parser.set_defaults(disk=0)
    parser.add_argument(
        "--private",
        action="store_true",
        help="show the flavor only to projects that get access to it",
    )
    _add_target(parser, is_required=True)
    parser.set_defaults(clear=False)
    _add_request(parser)


def add_sizes(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add the options for the sizes of a new flavor.

    :param condition: when an option applies; without one, CPUs and memory
        are required.
    """
    for flag, unit, text in (
        ("--vcpus", "N", "number of virtual CPUs"),
        ("--ram", "MB", "memory in MB"),
        ("--disk", "GB", "root disk in GB"),
    ):
        parser.add_argument(
            flag,
            metavar=unit,
            type=parse_count,
            required=not condition and flag != "--disk",
            help=f"set the {text}{condition}",
        )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the option by which nothing is written."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the changes, and write nothing",
    )


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Add the options about the devices that a flavor requests."""
    parser.add_argument(
        "--count",
        type=parse_count,
        default=1,
        metavar="N",
        help="set the number of devices (default 1)",
    )
    for flag, name, text in _SINGLE_OPTIONS:
        parser.add_argument(flag, metavar=name, help=text)
    for flag, name, text in _REPEATED_OPTIONS:
        parser.add_argument(
            flag, metavar=name, help=text, action="append", default=[]
        )
    for name, values in _SETTINGS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=values,
            help=f"set the extra spec {flavors.NAMESPACE}{name}",
        )
    add_dry_run(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="set the flavor even if no guest of it can start, or if the"
        " profile is unknown",
    )


def _add_target(
    parser: argparse.ArgumentParser, is_required: bool = False
) -> Any:
    """Add the options that name a device; return their group."""
    target = parser.add_mutually_exclusive_group(required=is_required)
    target.add_argument(
        "--profile",
        metavar="PROFILE",
        help="request this profile of `nova-accel profile list`, for example"
        " A40-8Q: a name, a trait, or the id of an FPGA function or"
        " interface",
    )
    target.add_argument(
        "--class",
        dest="resource_class",
        metavar="CLASS",
        help="request devices of this resource class, for example PGPU or"
        " CUSTOM_QAT_VF",
    )
    return target


_SINGLE_OPTIONS = (
    (
        "--model",
        "MODEL",
        "require cards of this model, for example A40, with --class",
    ),
    (
        "--device",
        "HOST/ADDRESS",
        "require this device, for example node1/0000:41:00.0",
    ),
    (
        "--bitstream",
        "IMAGE",
        "load this Glance image, by uuid, into the FPGA region",
    ),
    (
        "--group",
        "NAME",
        "set the name of the request groups; groups of other names stay",
    ),
)
_REPEATED_OPTIONS = (
    ("--trait", "TRAIT", "require this trait, too; may be repeated"),
    (
        "--charge",
        "CLASS=N",
        "set the amount that one device charges, if it is unknown, for"
        " example CUSTOM_GPU_MEMORY_MB=4096; may be repeated",
    ),
)
_SETTINGS = {
    name: tuple(value.value for value in values)
    for name, values in {
        "numa_policy": flavors.NumaPolicy,
        "locality": flavors.Locality,
        "packing": flavors.Packing,
        "display": flavors.Switch,
        "ramfb": flavors.Switch,
        "rom": flavors.Switch,
    }.items()
}


def parse_count(text: str) -> int:
    """Return a number, 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def open_cloud(arguments: argparse.Namespace) -> "CloudContext":
    """Return the clients of the arguments.

    :raises AcceleratorError: an argument can't be used.
    """
    reader = fleet_command.CloudReader(arguments)
    return CloudContext(
        reader.placement,
        reader.open_compute(),
        reader.types,
        reader.options.settings.rules.default.series,
    )


class CloudContext:
    """Clients of Placement and Nova, the vGPU types, and licensed series."""

    def __init__(
        self,
        placement: rest.RestClient,
        compute: rest.RestClient,
        types: offered_devices.VgpuTypes,
        series: frozenset[str],
    ) -> None:
        self.placement = placement
        self.compute = compute
        self.types = types
        self.series = series

    def explain_rules(self, contents: flavor_specs.FlavorContents) -> str:
        """Return why no host can ever serve a flavor, or ""."""
        return flavor_rules.explain_contradiction(
            contents, self.types
        ) or flavor_rules.explain_license(contents, self.series)

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
        simulated = simulation.SimulatedRequest(
            specs=specs, needs=flavor.needs_with_disk
        )
        if not simulated.accelerators.groups:
            return ""
        try:
            return explain_command.simulate(
                self.placement, simulated, offered
            ).refusal
        except queries.QueryError as error:
            return str(error)


# -- show -------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> application.Output:
    context = open_cloud(arguments)
    flavor = cloud.find_flavor(context.compute, arguments.flavor)
    report = _build_report(context, flavor)
    content = flavor_text.as_dict(report)
    if arguments.json:
        return json.dumps(content, indent=2) + "\n"
    del content["flavor"]
    texts = flavor_text.as_cells(report, context.types)
    return application.Record(
        {"id": flavor.id, "name": flavor.name}
        | {
            name: application.Cell(value, texts[name])
            if name in texts
            else value
            for name, value in content.items()
        },
        text=flavor_text.as_text(report, context.types),
    )


def _build_report(
    context: CloudContext, flavor: cloud.Flavor
) -> flavor_text.FlavorReport:
    """Return a flavor and its capacity, which some users may not know.

    :raises ServiceError: Placement does not respond.
    """
    contents = flavor_specs.read(flavor.specs)
    refusal = context.explain_rules(contents)
    report = flavor_text.FlavorReport(
        flavor={"id": flavor.id, "name": flavor.name},
        contents=contents,
        specs=flavor.specs,
        refusal=refusal,
        room=None,
        carriers={},
    )
    offered = offered_devices.Cloud()
    if contents.groups:
        try:
            offered = cloud.read(context.placement)
        except errors.ServiceError as error:
            if not error.is_forbidden:
                raise
            print(
                "nova-accel: warning: Placement refuses to show devices to"
                f" you ({error.reason}): whether a host can serve the flavor"
                " now is not known",
                file=sys.stderr,
            )
            return report
    refusal = refusal or context.explain_refusal(flavor, flavor.specs, offered)
    count = room.count_room(contents, offered, flavor.needs)
    return dataclasses.replace(
        report,
        refusal=refusal,
        room=0 if refusal else count,
        carriers={
            pin: tuple(d.name for d in offered.devices if pin in d.traits)
            for pin in sorted(flavor_specs.list_pins(flavor.specs))
        },
    )


# -- set --------------------------------------------------------------------


def _set(arguments: argparse.Namespace) -> str:
    context = open_cloud(arguments)
    flavor = cloud.find_flavor(context.compute, arguments.flavor)
    return _change(arguments, context, flavor)


def _create(arguments: argparse.Namespace) -> str:
    """Create a flavor after its request has been checked.

    :raises ServiceError: Nova refuses; then there is no new flavor.
    """
    flavor = cloud.Flavor(
        id="",
        name=arguments.flavor,
        specs={},
        needs={"VCPU": arguments.vcpus, "MEMORY_MB": arguments.ram},
        disk_gb=arguments.disk,
    )
    return _change(arguments, open_cloud(arguments), flavor)


def _change(
    arguments: argparse.Namespace,
    context: "CloudContext",
    flavor: cloud.Flavor,
) -> str:
    """Change a flavor's extra specs, or create one without an id.

    :return: the changes as text or JSON.
    """
    offered = offered_devices.Cloud()
    pinned: offered_devices.OfferedDevice | None = None
    if not arguments.clear:
        offered = cloud.read(context.placement)
    if arguments.device:
        pinned, offered = _find_pinned(arguments.device, offered)
    request = _build_request(arguments, context, offered, pinned)
    change = flavor_specs.plan(flavor.specs, request)
    _check_rules(arguments, context, flavor_specs.read(change.specs))
    if not (arguments.dry_run or flavor.id):
        flavor = _write_new(arguments, context, flavor, change, pinned)
    elif not arguments.dry_run:
        _write(context, flavor, change, pinned)
    # A dry run does not create the trait that pins the flavor to a device.
    if not (arguments.clear or (arguments.dry_run and pinned)):
        _warn(context.explain_refusal(flavor, change.specs, offered))
    if arguments.json:
        return _as_json(flavor, change, arguments.dry_run)
    return "".join(_format_change(flavor, change, arguments.dry_run))


def _build_request(
    arguments: argparse.Namespace,
    context: CloudContext,
    offered: offered_devices.Cloud,
    pinned: offered_devices.OfferedDevice | None,
) -> flavor_specs.FlavorRequest:
    """Return the request of the arguments.

    :raises MalformedError: the arguments contradict each other.
    :raises NotOfferedError: the profile, class or model is unknown.
    """
    settings = {
        name: value
        for name in _SETTINGS
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.group is not None:
        flavor_specs.check_group(arguments.group)
    profile = arguments.profile or arguments.resource_class
    if profile is None:
        _check_settings(arguments, settings)
        return flavor_specs.FlavorRequest(
            settings=settings, group=arguments.group or ""
        )
    devices = lookup.find_profile(
        lookup.ProfileQuery(
            profile=profile,
            model=arguments.model or "",
            traits=tuple(arguments.trait),
            charges=dict(map(_parse_charge, arguments.charge)),
            bitstream=arguments.bitstream or "",
            count=arguments.count,
        ),
        offered,
        context.types,
        arguments.force,
    )
    if pinned is not None:
        trait = names.pin_trait(pinned.host, pinned.address)
        devices = dataclasses.replace(
            devices, required=devices.required | {trait}
        )
    return flavor_specs.FlavorRequest(
        devices=devices, settings=settings, group=arguments.group or ""
    )


def _check_settings(
    arguments: argparse.Namespace, settings: dict[str, str]
) -> None:
    """Check the arguments of a call without --profile and --class."""
    unused = [
        f"--{name}"
        for name in ("model", "device", "bitstream", "trait", "charge")
        if getattr(arguments, name)
    ]
    if arguments.count != 1:
        unused.append("--count")
    if unused or bool(settings) == arguments.clear:
        flags = [*unused, *(f"--{n.replace('_', '-')}" for n in settings)]
        raise errors.MalformedError(
            "choice",
            " ".join(flags + ["--clear"] * arguments.clear),
            "--profile or --class with it, settings alone, or --clear alone",
        )


def _parse_charge(text: str) -> tuple[str, int]:
    name, _, amount = text.partition("=")
    if not name or not amount.isdecimal() or not int(amount):
        raise errors.MalformedError(
            "--charge", text, "CLASS=N, such as CUSTOM_GPU_MEMORY_MB=4096"
        )
    return name, int(amount)


def _find_pinned(
    device: str, offered: offered_devices.Cloud
) -> tuple[offered_devices.OfferedDevice, offered_devices.Cloud]:
    """Return the device of an argument, and the cloud with its pin trait.

    :param device: HOST/ADDRESS.
    :raises MalformedError: there is no such device.
    """
    host, _, address = device.partition("/")
    listed = lookup.select_host(offered.devices, host)
    uuid = names.provider_uuid(listed[0].root, address)
    name = names.provider_name(listed[0].host, address)
    for candidate in listed:
        if candidate.uuid == uuid or candidate.name == name:
            trait = names.pin_trait(candidate.host, candidate.address)
            pinned = dataclasses.replace(
                candidate, traits=candidate.traits | {trait}
            )
            return pinned, dataclasses.replace(
                offered,
                devices=tuple(
                    pinned if d.uuid == pinned.uuid else d
                    for d in offered.devices
                ),
            )
    raise errors.MalformedError(
        "--device",
        device,
        f"HOST/ADDRESS; {listed[0].host} has:"
        f" {', '.join(candidate.address for candidate in listed)}",
    )


def _check_rules(
    arguments: argparse.Namespace,
    context: CloudContext,
    contents: flavor_specs.FlavorContents,
) -> None:
    """Refuse a flavor that contradicts itself, or warn with --force.

    :raises NotOfferedError: it does, and ``--force`` is not given.
    """
    reason = context.explain_rules(contents)
    if reason and not arguments.force:
        raise lookup.NotOfferedError(f"{reason}; --force sets it anyway")
    _warn(reason)


def _warn(reason: str) -> None:
    if reason:
        print(
            f"nova-accel: warning: no host can serve it now: {reason}",
            file=sys.stderr,
        )


def _write_new(
    arguments: argparse.Namespace,
    context: CloudContext,
    flavor: cloud.Flavor,
    change: flavor_specs.SpecsChange,
    pinned: offered_devices.OfferedDevice | None,
) -> cloud.Flavor:
    """Create a flavor with its extra specs; return it with its id.

    :raises ServiceError: a service refuses; then the flavor is deleted.
    """
    created = cloud.create_flavor(
        context.compute, flavor, is_public=not arguments.private
    )
    try:
        _write(context, created, change, pinned)
    except errors.ServiceError:
        cloud.delete_flavor(context.compute, created)
        raise
    return created


def _write(
    context: CloudContext,
    flavor: cloud.Flavor,
    change: flavor_specs.SpecsChange,
    pinned: offered_devices.OfferedDevice | None,
) -> None:
    """Write a flavor; set its pin trait before, remove an old one after.

    :raises ServiceError: a service refuses.
    """
    placement = resource_providers.PlacementClient(context.placement)
    if pinned is not None:
        trait = names.pin_trait(pinned.host, pinned.address)
        cloud.set_trait(placement, [pinned.uuid], trait)
    cloud.write_specs(context.compute, flavor, change)
    unused = flavor_specs.list_pins(flavor.specs)
    unused -= flavor_specs.list_pins(change.specs)
    if not unused:
        return
    for other in cloud.list_flavors(context.compute):
        if other.id != flavor.id:
            unused -= flavor_specs.list_pins(other.specs)
    for trait in sorted(unused):
        nodes = tree_reader.list_with_trait(context.placement, trait)
        cloud.set_trait(
            placement, [n.uuid for n in nodes], trait, is_present=False
        )


def _as_json(
    flavor: cloud.Flavor, change: flavor_specs.SpecsChange, is_dry: bool
) -> str:
    content = {
        "flavor": {"id": flavor.id, "name": flavor.name},
        "set": dict(sorted(change.added.items())),
        "removed": list(change.removed),
        "is_written": not is_dry,
    }
    return json.dumps(content, indent=2) + "\n"


def _format_change(
    flavor: cloud.Flavor, change: flavor_specs.SpecsChange, is_dry: bool
) -> Iterator[str]:
    verb = " would become" if is_dry else ""
    if not (change.added or change.removed):
        yield f"{flavor.name} is unchanged\n"
        return
    yield f"{flavor.name}{verb}:\n"
    for key, value in sorted(change.added.items()):
        yield f"  + {key}={value}\n"
    for key in change.removed:
        yield f"  - {key}\n"


SET = application.Action(
    _add_set_arguments, _set, common_options.add_cloud_credentials
)
CREATE = application.Action(
    _add_create_arguments, _create, common_options.add_cloud_credentials
)
SHOW = application.Action(
    _add_show_arguments, _show, common_options.add_cloud_credentials
)
