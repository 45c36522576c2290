# SPDX-License-Identifier: Apache-2.0
"""Options of commands about flavors, and the request for devices by them."""

import argparse
import dataclasses
from typing import Any

from nova_accel import errors
from nova_accel.cli import command_manager
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import flavor_specs, lookup, offered_devices


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flavor", metavar="FLAVOR", help="name or id of the flavor"
    )


def add_set_arguments(parser: argparse.ArgumentParser) -> None:
    add_show_arguments(parser)
    target = _add_target(parser)
    target.add_argument(
        "--clear",
        action="store_true",
        help="remove all accelerators from the flavor, or those of --group",
    )
    _add_request(parser)


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
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
            metavar="N" if name == flavors.MEMORY_NODES else None,
            help=f"set the extra spec {flavors.NAMESPACE}{name}"
            f"{_MORE_HELP.get(name, '')}",
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
        help="request this profile of `openstack accel profile list`, for"
        " example A40-8Q: a name, a trait, or the id of an FPGA function or"
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
    (
        "--or-profile",
        "PROFILE",
        "request this vGPU type if --profile fits nowhere, or with `*-SIZE`"
        " this size of all models; may be repeated, in order of preference",
    ),
    ("--trait", "TRAIT", "require this trait, too; may be repeated"),
    (
        "--charge",
        "CLASS=N",
        "set the amount that one device charges, if it is unknown, for"
        " example CUSTOM_GPU_MEMORY_MB=4096; may be repeated",
    ),
)
_SETTINGS: dict[str, tuple[str, ...]] = {
    name: tuple(value.value for value in values)
    for name, values in {
        "numa_policy": flavors.NumaPolicy,
        "locality": flavors.Locality,
        "packing": flavors.Packing,
        "display": flavors.Switch,
        "ramfb": flavors.Switch,
        "rom": flavors.Switch,
        flavors.GUEST_TOPOLOGY: flavors.GuestTopology,
    }.items()
} | {
    flavors.MEMORY_NODES: tuple(map(str, range(flavors.MAX_MEMORY_NODES + 1)))
}
_MORE_HELP = {
    "packing": "; exclusive requests the whole card",
    flavors.MEMORY_NODES: ", the NUMA nodes for the memory of each whole GPU"
    " (default: 8 for GPUs that need it, as GH200 and GB200)",
}


# Options that need --profile or --class.
_WITH_PROFILE = (
    *("model", "device", "bitstream", "trait", "charge"),
    "or-profile",
)


def parse_count(text: str) -> int:
    """Return a number, 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def build_request(
    arguments: argparse.Namespace,
    types: offered_devices.VgpuTypes,
    offered: offered_devices.Cloud,
    pinned: offered_devices.OfferedDevice | None,
) -> flavor_specs.FlavorRequest:
    """Return the request of the arguments.

    :raises UsageError: the arguments contradict each other.
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
            is_exclusive=settings.get("packing")
            == flavors.Packing.EXCLUSIVE.value,
        ),
        offered,
        types,
        arguments.force,
    )
    if arguments.or_profile:
        settings[flavors.PROFILES] = _join_choices(arguments, devices, types)
    if pinned is not None:
        trait = names.pin_trait(pinned.host, pinned.address)
        devices = dataclasses.replace(
            devices, required=devices.required | {trait}
        )
    return lookup.add_memory_nodes(
        flavor_specs.FlavorRequest(
            devices=devices, settings=settings, group=arguments.group or ""
        ),
        offered,
    )


def _join_choices(
    arguments: argparse.Namespace,
    devices: flavor_specs.DeviceRequest,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return the list of the profile and of those that may replace it.

    :raises UsageError: the profile is no vGPU type of the catalog.
    """
    first = next(filter(None, map(types.find, sorted(devices.required))), None)
    if first is None:
        raise command_manager.UsageError(
            "--or-profile needs a --profile that is an NVIDIA vGPU type"
        )
    return ",".join((first.name, *arguments.or_profile))


def _check_settings(
    arguments: argparse.Namespace, settings: dict[str, str]
) -> None:
    """Check the arguments of a call without --profile and --class."""
    unused = [
        f"--{name}"
        for name in _WITH_PROFILE
        if getattr(arguments, name.replace("-", "_"))
    ]
    if arguments.count != 1:
        unused.append("--count")
    if unused or bool(settings) == arguments.clear:
        flags = [*unused, *(f"--{n.replace('_', '-')}" for n in settings)]
        flags += ["--clear"] * arguments.clear
        cause = f"{', '.join(flags)} can't be alone" if flags else "no change"
        raise command_manager.UsageError(
            f"{cause}: name --profile or --class with it, settings without a"
            " profile, or --clear without others"
        )


def _parse_charge(text: str) -> tuple[str, int]:
    name, _, amount = text.partition("=")
    if not name or not amount.isdecimal() or not int(amount):
        raise errors.MalformedError(
            "--charge", text, "CLASS=N, such as CUSTOM_GPU_MEMORY_MB=4096"
        )
    return name, int(amount)
