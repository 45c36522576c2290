# SPDX-License-Identifier: Apache-2.0
"""Command ``flavor convert``: flavors for Nova's own vGPUs, or back."""

import argparse
from collections.abc import Iterable

from nova_accel import errors
from nova_accel.cli import application
from nova_accel.config.lines import native_flavors
from placement_sync.cli import common_options
from placement_sync.fleet.cli import fleet_output
from placement_sync.fleet.explain import (
    cloud_context,
    flavor_options,
    import_command,
)
from placement_sync.fleet.flavors import cloud, flavor_specs

# Of lines that were copied from nova.conf, or from `adopt plan`.
_PREFIX = "native_flavors = "


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="file with a line of native_flavors in each line, - for standard"
        " input",
    )
    parser.add_argument(
        "--undo",
        action="store_true",
        help="convert flavors of the lines' results back",
    )
    flavor_options.add_dry_run(parser)


def _run(arguments: argparse.Namespace) -> application.Output:
    """Convert all flavors of the cloud to which a line applies.

    :raises ConfigurationError: a line is not valid.
    :raises UsageError: the file can't be read.
    :raises ServiceError: a service refuses. Flavors before that one are
        written; a second call continues.
    """
    lines = _parse(arguments.file, import_command.read_file(arguments.file))
    if arguments.undo:
        lines = tuple(line.invert() for line in lines)
    context = cloud_context.open_cloud(arguments)
    rows = []
    for flavor in cloud.list_flavors(context.compute):
        change = _plan(flavor, lines)
        if change is None:
            continue
        planned = import_command.PlannedFlavor(flavor=flavor, change=change)
        if not arguments.dry_run:
            import_command.write(context, planned)
        rows.append(import_command.build_row(planned, arguments.dry_run))
    return fleet_output.as_output(
        import_command.COLUMNS,
        rows,
        note="" if rows else "No line applies to a flavor.\n",
    )


def _parse(path: str, text: str) -> tuple[native_flavors.Replacement, ...]:
    try:
        return native_flavors.parse_catalog_lines(
            line.removeprefix(_PREFIX)
            for line in text.splitlines()
            if line.strip()
        )
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(
            error.option, error.value, error.hint, path
        ) from error


def _plan(
    flavor: cloud.Flavor, lines: Iterable[native_flavors.Replacement]
) -> flavor_specs.SpecsChange | None:
    """Return the change of a flavor, None if no line applies to it."""
    after = native_flavors.apply(lines, flavor.specs)
    if after is None:
        return None
    return flavor_specs.SpecsChange(
        specs=after,
        added={k: v for k, v in after.items() if flavor.specs.get(k) != v},
        removed=tuple(sorted(flavor.specs.keys() - after.keys())),
    )


ACTION = common_options.build_cloud_action(_add_arguments, _run)
