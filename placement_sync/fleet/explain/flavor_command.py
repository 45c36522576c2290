# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel flavor``: create, set and show flavors."""

import argparse
import dataclasses
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog import profile_order
from nova_accel.cli import application
from nova_accel.model import names
from placement_sync.cli import common_options, progress
from placement_sync.client import provider_records, resource_providers
from placement_sync.fleet.explain import cloud_context, flavor_options
from placement_sync.fleet.flavors import (
    cloud,
    flavor_specs,
    flavor_text,
    lookup,
    offered_devices,
    room,
)

# -- show -------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> application.Output:
    context = cloud_context.open_cloud(arguments)
    flavor = cloud.find_flavor(context.compute, arguments.flavor)
    context.warn_of_address_bits(flavor, flavor.specs)
    report = _build_report(context, flavor)
    content = flavor_text.as_dict(report)
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
    )


def _build_report(
    context: cloud_context.CloudContext, flavor: cloud.Flavor
) -> flavor_text.FlavorReport:
    """Return a flavor and its capacity, which some users may not know.

    :raises ServiceError: Placement does not respond.
    """
    contents = flavor_specs.read(flavor.specs)
    refusal = context.explain_rules(contents)
    offered: offered_devices.Cloud | None = offered_devices.Cloud()
    if contents.groups:
        offered = _read_offered(context)
    count = None
    carriers = {}
    if offered is not None:
        refusal = refusal or context.explain_refusal(
            flavor, flavor.specs, offered
        )
        count = room.count_room(
            contents, offered, flavor.needs, context.types.geometry
        )
        carriers = {
            pin: tuple(d.name for d in offered.devices if pin in d.traits)
            for pin in sorted(flavor_specs.list_pins(flavor.specs))
        }
    return flavor_text.FlavorReport(
        flavor={"id": flavor.id, "name": flavor.name},
        contents=contents,
        specs=flavor.specs,
        refusal=refusal,
        room=0 if count and refusal else count,
        carriers=carriers,
    )


def _read_offered(
    context: cloud_context.CloudContext,
) -> offered_devices.Cloud | None:
    """Return the devices of all hosts, None if this user may not see them.

    :raises ServiceError: Placement does not respond.
    """
    try:
        return context.read_devices()
    except errors.ServiceError as error:
        if not error.is_forbidden:
            raise
        progress.warn(
            f"Placement refuses to show devices to you ({error.reason}):"
            " whether a host can serve the flavor now is not known"
        )
        return None


# -- set --------------------------------------------------------------------


def _set(arguments: argparse.Namespace) -> application.Output:
    context = cloud_context.open_cloud(arguments)
    flavor = cloud.find_flavor(context.compute, arguments.flavor)
    return _change(arguments, context, flavor)


def _create(arguments: argparse.Namespace) -> application.Output:
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
    return _change(arguments, cloud_context.open_cloud(arguments), flavor)


def _change(
    arguments: argparse.Namespace,
    context: cloud_context.CloudContext,
    flavor: cloud.Flavor,
) -> application.Document:
    """Change a flavor's extra specs, or create one without an id.

    :return: the changes.
    :raises MalformedError: a choice of the request is no vGPU type.
    """
    offered = offered_devices.Cloud()
    pinned: offered_devices.OfferedDevice | None = None
    if not arguments.clear:
        offered = context.read_devices()
    if arguments.device:
        pinned, offered = _find_pinned(arguments.device, offered)
    request = flavor_options.build_request(
        arguments, context.types, offered, pinned
    )
    change = flavor_specs.plan(flavor.specs, request)
    profile_order.list_choices(change.specs, context.types.catalog)
    _check_rules(arguments, context, flavor_specs.read(change.specs))
    context.warn_of_address_bits(flavor, change.specs)
    if not (arguments.dry_run or flavor.id):
        flavor = _write_new(arguments, context, flavor, change, pinned)
    elif not arguments.dry_run:
        _write(context, flavor, change, pinned)
    # A dry run does not create the trait that pins the flavor to a device.
    if not (arguments.clear or (arguments.dry_run and pinned)):
        _warn(context.explain_refusal(flavor, change.specs, offered))
    return application.Document(
        lambda: _as_dict(flavor, change, arguments.dry_run),
        lambda: "".join(_format_change(flavor, change, arguments.dry_run)),
    )


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
    context: cloud_context.CloudContext,
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
        progress.warn(f"no host can serve it now: {reason}")


def _write_new(
    arguments: argparse.Namespace,
    context: cloud_context.CloudContext,
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
    context: cloud_context.CloudContext,
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
        nodes = provider_records.list_with_trait(
            context.placement.fetch, trait
        )
        cloud.set_trait(
            placement, [n.uuid for n in nodes], trait, is_present=False
        )


def _as_dict(
    flavor: cloud.Flavor, change: flavor_specs.SpecsChange, is_dry: bool
) -> dict[str, object]:
    return {
        "flavor": {"id": flavor.id, "name": flavor.name},
        "set": dict(sorted(change.added.items())),
        "removed": list(change.removed),
        "is_written": not is_dry,
    }


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


SET = common_options.build_cloud_action(flavor_options.add_set_arguments, _set)
CREATE = common_options.build_cloud_action(
    flavor_options.add_create_arguments, _create
)
SHOW = common_options.build_cloud_action(
    flavor_options.add_show_arguments, _show
)
