# SPDX-License-Identifier: Apache-2.0
"""Command ``flavor import``: flavors of a file, created or changed."""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from nova_accel import errors
from nova_accel.cli import application, command_manager
from placement_sync.cli import common_options, progress
from placement_sync.fleet.cli import fleet_output
from placement_sync.fleet.explain import cloud_context, flavor_options
from placement_sync.fleet.flavors import (
    cloud,
    flavor_file,
    flavor_specs,
    lookup,
    offered_devices,
)

COLUMNS = ("Flavor", "Result", "Changes")
_PROFILE = "{profile}"
# Characters that Nova allows in names of flavors, and no upper case.
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
# Keys by which flavors request devices of Nova itself or of Cyborg.
_OTHER_KEYS = ("pci_passthrough:alias", "accel:device_profile")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="file in JSON, - for standard input"
    )
    flavor_options.add_sizes(
        parser, " of new flavors for which the file has none"
    )
    parser.add_argument(
        "--name",
        metavar="TEMPLATE",
        help=f"set the name of flavors of profiles, with {_PROFILE} for that"
        f" of the profile, for example gpu.{_PROFILE}",
    )
    flavor_options.add_dry_run(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="import also flavors of which no guest can start",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFlavor:
    """Change of a flavor; it is new without an id.

    ``reason`` is why it is skipped, empty if it is not.
    """

    flavor: cloud.Flavor
    change: flavor_specs.SpecsChange
    is_public: bool = True
    reason: str = ""

    @property
    def result(self) -> str:
        if self.reason:
            return "skipped"
        if not self.flavor.id:
            return "created"
        is_changed = self.change.added or self.change.removed
        return "changed" if is_changed else "unchanged"


def _run(arguments: argparse.Namespace) -> application.Output:
    """Create or change the flavors of a file, after all have been checked.

    :raises AcceleratorError: the file or an argument can't be used.
    :raises NotOfferedError: a profile is unknown, or a flavor contradicts
        itself.
    :raises ServiceError: a service refuses. Flavors before that one are
        written; a second import continues.
    """
    entries = flavor_file.parse(read_file(arguments.file))
    context = cloud_context.open_cloud(arguments)
    offered = context.read_devices()
    existing = {f.name: f for f in cloud.list_flavors(context.compute)}
    planned = [
        _plan(arguments, entry, existing, offered, context)
        for entry in entries
    ]
    rows = []
    for each in planned:
        if not arguments.dry_run:
            write(context, each)
        if each.result in ("created", "changed"):
            _warn(context, each, offered)
        rows.append(build_row(each, arguments.dry_run))
    return fleet_output.as_output(
        COLUMNS,
        rows,
        note="" if rows else "The file has no flavor.\n",
    )


def read_file(path: str) -> str:
    """Return the text of a file of flavors, ``-`` for standard input.

    :raises UsageError: it can't be read, or is no text.
    """
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise command_manager.UsageError(
            f"{path} can't be read: {_describe(error)}; name a file of flavors"
        ) from error


def _describe(error: OSError | UnicodeDecodeError) -> str:
    """Return the cause without the file's name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it is no UTF-8 text ({error})"


def _plan(
    arguments: argparse.Namespace,
    entry: flavor_file.FlavorEntry,
    existing: Mapping[str, cloud.Flavor],
    offered: offered_devices.Cloud,
    context: cloud_context.CloudContext,
) -> PlannedFlavor:
    """Return the change of one flavor.

    :raises AcceleratorError: see ``_run``.
    """
    name, specs = entry.name, entry.specs
    if entry.profile:
        name = _build_name(arguments.name, entry.profile)
        specs = _build_specs(entry.profile, offered, context.types)
    flavor = existing.get(name) or cloud.Flavor(
        id="", name=name, specs={}, needs={}
    )
    change = flavor_file.plan(flavor.specs, specs)
    contents = flavor_specs.read(specs)
    if not contents.groups:
        return PlannedFlavor(
            flavor=flavor, change=change, reason=_explain_skip(specs)
        )
    reason = context.explain_rules(contents)
    if reason and not arguments.force:
        raise lookup.NotOfferedError(
            f"flavor {name}: {reason}; --force imports it anyway"
        )
    if flavor.id:
        _check_sizes(entry, flavor)
    else:
        flavor = _with_sizes(arguments, entry, flavor)
    return PlannedFlavor(
        flavor=flavor, change=change, is_public=entry.is_public
    )


def _explain_skip(specs: Mapping[str, str]) -> str:
    others = [key for key in _OTHER_KEYS if key in specs]
    if others:
        return (
            f"it requests devices by {', '.join(others)}, which nova-accel"
            " does not serve; use flavor create --profile"
        )
    return "it requests no accelerator"


def _build_name(template: str | None, profile: str) -> str:
    """Return the name of the flavor of a profile.

    :raises UsageError: there is no template, or it is the same for all
        profiles.
    """
    if _PROFILE not in (template or ""):
        raise command_manager.UsageError(
            f"each profile becomes a flavor of its own; add --name with"
            f" {_PROFILE}, such as --name gpu-{_PROFILE}"
        )
    slug = _NOT_IN_NAMES.sub("-", profile.lower())
    return str(template).replace(_PROFILE, slug)


def _build_specs(
    profile: str,
    offered: offered_devices.Cloud,
    types: offered_devices.VgpuTypes,
) -> Mapping[str, str]:
    devices = lookup.find_profile(
        lookup.ProfileQuery(profile=profile), offered, types
    )
    request = lookup.add_memory_nodes(
        flavor_specs.FlavorRequest(devices=devices), offered
    )
    return flavor_specs.plan({}, request).specs


def _check_sizes(entry: flavor_file.FlavorEntry, flavor: cloud.Flavor) -> None:
    """Check that a flavor of Nova has the sizes of the file.

    :raises UsageError: it has others, which Nova can't change.
    """
    current = (flavor.needs["VCPU"], flavor.needs["MEMORY_MB"])
    sizes = (entry.vcpus, entry.ram_mb)
    if any(n not in (None, m) for n, m in zip(sizes, current, strict=True)):
        raise command_manager.UsageError(
            f"flavor {flavor.name} has {current[0]} CPUs and {current[1]} MB"
            f" in Nova, and {_format_sizes(sizes)} in the file: Nova can't"
            " change the sizes of a flavor; import it with another name"
        )


def _format_sizes(sizes: Sequence[int | None]) -> str:
    texts = zip(sizes, ("CPUs", "MB"), strict=True)
    return " and ".join(f"{n} {unit}" for n, unit in texts if n is not None)


def _with_sizes(
    arguments: argparse.Namespace,
    entry: flavor_file.FlavorEntry,
    flavor: cloud.Flavor,
) -> cloud.Flavor:
    """Return a new flavor with the sizes of the file or the arguments.

    :raises UsageError: none of them has the CPUs or the memory, or the
        file has ephemeral or swap disks.
    """
    vcpus, ram_mb, disk_gb = (
        default if size is None else size
        for size, default in zip(
            entry.sizes,
            (arguments.vcpus, arguments.ram, arguments.disk),
            strict=True,
        )
    )
    if vcpus is None or ram_mb is None:
        raise command_manager.UsageError(
            f"Nova has no flavor {flavor.name}, and the file has no sizes for"
            " it; add --vcpus and --ram"
        )
    if entry.has_other_disks:
        raise command_manager.UsageError(
            f"flavor {flavor.name} has ephemeral or swap disks, which an"
            " import does not set; create it with `openstack flavor create`"
            " first"
        )
    return dataclasses.replace(
        flavor,
        needs={"VCPU": vcpus, "MEMORY_MB": ram_mb},
        disk_gb=disk_gb or 0,
    )


def write(context: cloud_context.CloudContext, planned: PlannedFlavor) -> None:
    """Create or change a flavor.

    :raises ServiceError: Nova refuses; then there is no new flavor.
    """
    if planned.result not in ("created", "changed"):
        return
    flavor = planned.flavor
    if flavor.id:
        cloud.write_specs(context.compute, flavor, planned.change)
        return
    created = cloud.create_flavor(
        context.compute, flavor, is_public=planned.is_public
    )
    try:
        cloud.write_specs(context.compute, created, planned.change)
    except errors.ServiceError:
        cloud.delete_flavor(context.compute, created)
        raise


def _warn(
    context: cloud_context.CloudContext,
    planned: PlannedFlavor,
    offered: offered_devices.Cloud,
) -> None:
    reason = context.explain_refusal(
        planned.flavor, planned.change.specs, offered
    )
    if reason:
        progress.warn(f"no host can serve {planned.flavor.name} now: {reason}")


def build_row(planned: PlannedFlavor, is_dry: bool) -> Mapping[str, object]:
    """Return the row of a flavor, by COLUMNS."""
    result = planned.result
    if is_dry and result in ("created", "changed"):
        result = f"would be {result}"
    lines: Iterable[str] = [planned.reason]
    if not planned.reason:
        change = planned.change
        lines = [f"+ {k}={v}" for k, v in sorted(change.added.items())]
        lines = [*lines, *(f"- {key}" for key in change.removed)]
    cells = (planned.flavor.name, result, application.build_cell(list(lines)))
    return dict(zip(COLUMNS, cells, strict=True))


ACTION = common_options.build_cloud_action(_add_arguments, _run)
