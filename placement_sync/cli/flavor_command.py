# SPDX-License-Identifier: Apache-2.0
"""``nova-accel flavor``: set and show a flavor's extra specs."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.model import flavors, names
from placement_sync.cli import common_options
from placement_sync.client import resource_providers, rest
from placement_sync.flavors import (
    cloud,
    feasibility,
    feasibility_search,
    flavor_specs,
    flavor_text,
    lookup,
    offered_devices,
)

# Devices that are read anew before a flavor is refused: with as many hosts
# that differ from what bulk answers tell, something else is wrong.
_EXACT = 100


def add(subparsers: Any) -> None:
    """Add the command to those of ``nova-accel``."""
    parser = subparsers.add_parser(
        "flavor",
        help="write and read what a flavor asks of accelerators",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    _add_set(actions)
    show = actions.add_parser(
        "show",
        help="what a flavor asks for, and whether it can be had",
        allow_abbrev=False,
    )
    show.add_argument("flavor", metavar="FLAVOR", help="its name or id")
    _add_services(show)


def _add_services(parser: argparse.ArgumentParser) -> None:
    common_options.add_credentials(parser)
    common_options.add_compute_endpoint(parser)


def _add_set(actions: Any) -> None:
    parser = actions.add_parser(
        "set",
        help="write what a flavor asks for",
        description="Writes a flavor's extra specs, in place of all that it"
        " asked of accelerators; other extra specs stay. What no host can"
        " ever serve is refused. With neither profile nor class only the"
        " settings that are given change.",
        allow_abbrev=False,
    )
    parser.add_argument("flavor", metavar="FLAVOR", help="its name or id")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--profile",
        metavar="PROFILE",
        help="as `nova-accel profile list` names it: A40-8Q, a trait, the id"
        " of an FPGA's function or interface",
    )
    what.add_argument(
        "--class",
        dest="resource_class",
        metavar="CLASS",
        help="devices by their resource class: PGPU, CUSTOM_QAT_VF",
    )
    what.add_argument(
        "--clear",
        action="store_true",
        help="take away all that it asks of accelerators, or the groups of"
        " --group",
    )
    parser.add_argument("--count", type=_number, default=1, metavar="N")
    for flag, name, text in _NARROW:
        parser.add_argument(flag, metavar=name, help=text)
    for flag, name, text in _REPEATED:
        parser.add_argument(
            flag, metavar=name, help=text, action="append", default=[]
        )
    for name, values in _SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", choices=values)
    parser.add_argument(
        "--dry-run", action="store_true", help="tell, and write nothing"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write also what no host can serve",
    )
    _add_services(parser)


_NARROW = (
    ("--model", "MODEL", "only cards of this model, beside --class"),
    ("--device", "HOST/ADDRESS", "this device only, as node1/0000:41:00.0"),
    ("--bitstream", "IMAGE", "id of the image to load into the FPGA"),
    ("--group", "NAME", "name of the groups; others of the flavor stay"),
)
_REPEATED = (
    ("--trait", "TRAIT", "the device must have it, too; may be repeated"),
    ("--charge", "CLASS=N", "what one takes, where it is not known"),
)
_SETTINGS = {
    name: tuple(one.value for one in words)
    for name, words in {
        "numa_policy": flavors.NumaPolicy,
        "locality": flavors.Locality,
        "packing": flavors.Packing,
        "display": flavors.Switch,
        "ramfb": flavors.Switch,
        "rom": flavors.Switch,
    }.items()
}


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def run(arguments: argparse.Namespace) -> str:
    """Return what was done, or what the flavor asks for.

    :raises AcceleratorError: it can't be done as it was asked for.
    """
    chosen = common_options.choose(arguments)
    compute, why = common_options.open_compute(arguments, chosen)
    if compute is None:
        raise errors.ConfigurationError("[nova]", "(no credentials)", why)
    site = _CloudContext(common_options.open_door(arguments, chosen), compute)
    action = _set if arguments.action == "set" else _show
    return action(arguments, site)


class _CloudContext:
    """Placement and Nova, and what is known of vGPU types."""

    def __init__(
        self, placement: rest.RestClient, compute: rest.RestClient
    ) -> None:
        self.placement = placement
        self.compute = compute
        self.types = offered_devices.VgpuTypes(loader.load())

    def objection(
        self, asked: flavor_specs.FlavorContents, there: offered_devices.Cloud
    ) -> str:
        """Return why no host can ever serve this, or nothing.

        Before that is believed, what is reserved is read as well: bulk
        answers leave it out.
        """
        found = feasibility.objection(asked, there, self.types)
        if not found:
            return ""
        wanted = {name for group in asked.groups for name in group.resources}
        doubted = [d.uuid for d in there.devices if wanted & d.stock.keys()]
        there = cloud.with_totals(self.placement, there, set(doubted[:_EXACT]))
        return feasibility.objection(asked, there, self.types)


# -- show -------------------------------------------------------------------


def _show(arguments: argparse.Namespace, site: _CloudContext) -> str:
    flavor = cloud.find_flavor(site.compute, arguments.flavor)
    asked = flavor_specs.read(flavor.specs)
    there = offered_devices.Cloud()
    if asked.groups:
        there = cloud.read(site.placement)
    found = flavor_text.FlavorReport(
        flavor={"id": flavor.id, "name": flavor.name},
        asked=asked,
        specs=flavor.specs,
        never=site.objection(asked, there),
        room=feasibility_search.room(asked, there, flavor.needs),
        carriers={
            pin: tuple(d.name for d in there.devices if pin in d.traits)
            for pin in sorted(flavor_specs.pins(flavor.specs))
        },
    )
    if arguments.json:
        return json.dumps(flavor_text.as_dict(found), indent=2) + "\n"
    return flavor_text.as_text(found, site.types)


# -- set --------------------------------------------------------------------


def _set(arguments: argparse.Namespace, site: _CloudContext) -> str:
    flavor = cloud.find_flavor(site.compute, arguments.flavor)
    there = offered_devices.Cloud()
    pinned: offered_devices.OfferedDevice | None = None
    if not arguments.clear:
        there = cloud.read(site.placement)
    if arguments.device:
        pinned, there = _pin(arguments.device, there)
    wish = _wish(arguments, site, there, pinned)
    change = flavor_specs.plan(flavor.specs, wish)
    asked = flavor_specs.read(change.specs)
    if not arguments.clear:
        _check(arguments, site, asked, there)
    if not arguments.dry_run:
        _write(site, flavor, change, pinned)
    if arguments.json:
        return _as_json(flavor, change, arguments.dry_run)
    return "".join(_told(flavor, change, arguments.dry_run))


def _wish(
    arguments: argparse.Namespace,
    site: _CloudContext,
    there: offered_devices.Cloud,
    pinned: offered_devices.OfferedDevice | None,
) -> flavor_specs.FlavorRequest:
    """Return what is asked for, in the words of extra specs.

    :raises MalformedError: the arguments contradict each other.
    :raises RefusedError: what they name is not known.
    """
    settings = {
        name: given
        for name in _SETTINGS
        if (given := getattr(arguments, name)) is not None
    }
    if arguments.group is not None:
        flavor_specs.check_group(arguments.group)
    what = arguments.profile or arguments.resource_class
    if what is None:
        _check_alone(arguments, settings)
        return flavor_specs.FlavorRequest(
            settings=settings, group=arguments.group or ""
        )
    want = lookup.find(
        lookup.ProfileQuery(
            profile=what,
            model=arguments.model or "",
            traits=tuple(arguments.trait),
            charges=dict(map(_charge, arguments.charge)),
            bitstream=arguments.bitstream or "",
            count=arguments.count,
        ),
        there,
        site.types,
        arguments.force,
    )
    if pinned is not None:
        trait = names.pin_trait(pinned.host, pinned.address)
        want = dataclasses.replace(want, required=want.required | {trait})
    return flavor_specs.FlavorRequest(
        want=want, settings=settings, group=arguments.group or ""
    )


def _check_alone(
    arguments: argparse.Namespace, settings: dict[str, str]
) -> None:
    """Check what is given where no device is asked for."""
    idle = [
        f"--{name}"
        for name in ("model", "device", "bitstream", "trait", "charge")
        if getattr(arguments, name)
    ]
    if arguments.count != 1:
        idle.append("--count")
    if idle or bool(settings) == arguments.clear:
        given = [*idle, *(f"--{n.replace('_', '-')}" for n in settings)]
        raise errors.MalformedError(
            "choice",
            " ".join(given + ["--clear"] * arguments.clear),
            "--profile or --class with it, settings alone, or --clear alone",
        )


def _charge(text: str) -> tuple[str, int]:
    name, _, amount = text.partition("=")
    if not name or not amount.isdecimal() or not int(amount):
        raise errors.MalformedError(
            "--charge", text, "CLASS=N, as CUSTOM_GPU_MEMORY_MB=4096"
        )
    return name, int(amount)


def _pin(
    device: str, there: offered_devices.Cloud
) -> tuple[offered_devices.OfferedDevice, offered_devices.Cloud]:
    """Return the device that is named, and the cloud with it pinned.

    :raises MalformedError: there is no such device.
    """
    host, _, address = device.partition("/")
    listed = lookup.on_host(there.devices, host)
    wanted = names.provider_uuid(listed[0].root, address)
    name = names.provider_name(listed[0].host, address)
    for one in listed:
        if one.uuid == wanted or one.name == name:
            trait = names.pin_trait(one.host, one.address)
            mine = dataclasses.replace(one, traits=one.traits | {trait})
            return mine, dataclasses.replace(
                there,
                devices=tuple(
                    mine if d.uuid == one.uuid else d for d in there.devices
                ),
            )
    raise errors.MalformedError(
        "--device",
        device,
        f"HOST/ADDRESS; {listed[0].host} has:"
        f" {', '.join(one.address for one in listed)}",
    )


def _check(
    arguments: argparse.Namespace,
    site: _CloudContext,
    asked: flavor_specs.FlavorContents,
    there: offered_devices.Cloud,
) -> None:
    """Refuse what no host can ever serve, or warn.

    :raises RefusedError: none can, and it is not forced.
    """
    found = site.objection(asked, there)
    if not found:
        return
    if not arguments.force:
        raise lookup.NotOfferedError(
            f"{found}; --force writes it all the same"
        )
    print(f"nova-accel: warning: {found}", file=sys.stderr)


def _write(
    site: _CloudContext,
    flavor: cloud.Flavor,
    change: flavor_specs.SpecsChange,
    pinned: offered_devices.OfferedDevice | None,
) -> None:
    """Write a flavor, the device's trait before and an old one's after.

    :raises ServiceError: a service refuses.
    """
    placement = resource_providers.PlacementClient(site.placement)
    if pinned is not None:
        trait = names.pin_trait(pinned.host, pinned.address)
        cloud.ensure_trait(placement, [pinned.uuid], trait)
    cloud.write_specs(site.compute, flavor, change)
    gone = flavor_specs.pins(flavor.specs) - flavor_specs.pins(change.specs)
    if not gone:
        return
    for other in cloud.flavors(site.compute):
        if other.id != flavor.id:
            gone -= flavor_specs.pins(other.specs)
    for trait in sorted(gone):
        held = [p.uuid for p in cloud.with_trait(site.placement, trait)]
        cloud.ensure_trait(placement, held, trait, is_there=False)


def _as_json(
    flavor: cloud.Flavor, change: flavor_specs.SpecsChange, is_dry: bool
) -> str:
    plain = {
        "flavor": {"id": flavor.id, "name": flavor.name},
        "set": dict(sorted(change.added.items())),
        "removed": list(change.removed),
        "is_written": not is_dry,
    }
    return json.dumps(plain, indent=2) + "\n"


def _told(
    flavor: cloud.Flavor, change: flavor_specs.SpecsChange, is_dry: bool
) -> Iterator[str]:
    verb = " would become" if is_dry else ""
    if not (change.added or change.removed):
        yield f"{flavor.name} is so already\n"
        return
    yield f"{flavor.name}{verb}:\n"
    for key, value in sorted(change.added.items()):
        yield f"  + {key}={value}\n"
    for key in change.removed:
        yield f"  - {key}\n"
