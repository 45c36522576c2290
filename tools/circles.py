#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Circles of the code: which module is in which, by imports.

A circle imports only circles further inside. The heart is what nova-compute
loads without any extension; the circles of the middle are registered in it, or
other processes load them; the packages outside are never imported by the
others.
``python tools/circles.py`` prints the lines of each.
"""

import ast
import configparser
import dataclasses
import functools
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
TOP_PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
HEART, SCHEDULER, PASS = "heart", "scheduler", "pass"
HOST_COMMANDS = "host commands"
# Ring of the packages that the rest never imports.
PACKAGES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Circle:
    """Part of the code that a keeper can learn by itself.

    ``ring`` is 0 for the heart, 1 for what is registered in it or runs beside
    it, 2 for packages. ``prefixes`` are its modules and packages; a longer one
    precedes. The heart and the host commands have none, and get the other
    modules.
    """

    name: str
    ring: int
    prefixes: tuple[str, ...] = ()


#: In the order in which to read them.
CIRCLES = (
    Circle(HEART, 0),
    Circle(
        SCHEDULER,
        1,
        (
            "filters",
            "nova_accel.catalog.extra_specs",
            "nova_accel.config.spec_validators",
            "nova_accel.geometry.scheduling",
        ),
    ),
    Circle(
        "vendor drivers",
        1,
        (
            "nova_accel.vendors",
            "nova_accel.host.execute.technologies.vgpu_actions",
            "nova_accel.host.sysfs.modules",
            "nova_accel.host.sysfs.nvme",
            "nova_accel.host.sysfs.vgpu_config",
        ),
    ),
    Circle(
        "NVML",
        1,
        (
            "nova_accel.catalog.vgpu_xml",
            "nova_accel.host.nvml",
            "nova_accel.host.execute.technologies.nvml_actions",
            "nova_accel.host.execute.technologies.nvml_privileged",
        ),
    ),
    Circle(
        "hot attach",
        1,
        (
            "nova_accel.claims.attach_candidates",
            "nova_accel.discovery.device_marks",
            "virt_hooks.attach",
        ),
    ),
    Circle(
        "live migration",
        1,
        ("nova_accel.claims.migration", "virt_hooks.operations.migration"),
    ),
    Circle(
        "topology",
        1,
        ("nova_accel.geometry.address_space", "virt_hooks.guest.topology"),
    ),
    Circle("guest metadata", 1, ("virt_hooks.operations.metadata",)),
    Circle(
        "FPGA",
        1,
        (
            "nova_accel.catalog.fpga",
            "nova_accel.host.bitstreams",
            "nova_accel.host.fpga",
            "nova_accel.host.execute.technologies.fpga_actions",
            "nova_accel.host.execute.technologies.fpga_privileged",
            "filters.glance_images",
            "filters.placement.stale_cache",
            "virt_hooks.operations.fpga",
        ),
    ),
    Circle(
        PASS,
        1,
        (
            "placement_sync.client.provider_cache",
            "placement_sync.client.resource_providers",
            "placement_sync.client.sdk_errors",
            "placement_sync.daemon.loop",
            "placement_sync.sync.refusals",
            "placement_sync.sync.sync_pass",
            "virt_hooks.report.reconcile",
        ),
    ),
    Circle(
        "monitoring",
        1,
        (
            "nova_accel.discovery.vgpu_guests",
            "nova_accel.host.execute.technologies.qat_telemetry",
            "nova_accel.host.sysfs.usage_files",
            "nova_accel.model.usage",
            "placement_sync.daemon.heartbeat",
            "placement_sync.daemon.metrics",
            "placement_sync.daemon.status",
            "placement_sync.daemon.usage_rows",
            "virt_hooks.report.usage_extension",
        ),
    ),
    Circle(
        "config source",
        1,
        (
            "nova_accel.config.config_source",
            "nova_accel.config.top_packages",
        ),
    ),
    Circle(HOST_COMMANDS, 1),
    Circle("doctor", PACKAGES, ("nova_accel.doctor",)),
    Circle(
        "planning",
        PACKAGES,
        ("placement_sync.fleet.moves", "placement_sync.planning"),
    ),
    Circle("fleet", PACKAGES, ("placement_sync.fleet",)),
    Circle("audit", PACKAGES, ("placement_sync.audit",)),
    Circle(
        "adoption",
        PACKAGES,
        (
            "nova_accel.host.state.adoption_plan",
            "nova_accel.inventory.adoption",
            "placement_sync.adoption",
            "virt_hooks.operations.adoption",
        ),
    ),
    Circle("ironic", PACKAGES, ("virt_hooks.ironic",)),
    Circle("licenses", PACKAGES, ("placement_sync.licenses",)),
    Circle("conformance", PACKAGES, ("nova_accel.conformance",)),
)
# Circles that the goal of the heart counted before they were drawn apart.
SUMS = {
    "heart with the scheduler": (HEART, SCHEDULER),
    "heart with the scheduler and the pass": (HEART, SCHEDULER, PASS),
}


class Process(NamedTuple):
    """Modules that a process loads by name, and its groups of entry points."""

    modules: tuple[str, ...]
    groups: tuple[str, ...]


# Options of nova.conf name the modules. The doctor's start check, which
# nova-compute loads once, is not among the entry points, nor are those that it
# loads for a plan of adoption, or while another machine asks.
NOVA_PROCESSES = {
    "nova-compute": Process(
        ("virt_hooks.shim",),
        (
            "nova_accel.actions",
            "nova_accel.drivers",
            "nova_accel.gpu_readers",
            "nova_accel.guest_layouts",
            "nova_accel.guest_metadata",
            "nova_accel.live_moves",
            "nova_accel.operations",
            "nova_accel.passes",
            "nova_accel.programs",
            "nova_accel.status_extensions",
            "oslo.config.driver",
            "oslo.config.opts",
        ),
    ),
    "nova-scheduler": Process(
        ("filters.accelerator_filter", "filters.accelerator_weigher"),
        ("nova_accel.preferred_traits",),
    ),
    "nova-api": Process(
        (),
        (
            "nova.api.extra_spec_validators",
            "nova_accel.extra_spec_validators",
        ),
    ),
}
# All commands of a program; each loads a part.
_PROGRAMS = {
    "nova-accel": Process(
        ("nova_accel.cli.console",),
        (
            "nova_accel.cloud_checks",
            "nova_accel.commands",
            "nova_accel.domains",
            "nova_accel.drains",
            "nova_accel.drivers",
            "nova_accel.gpu_readers",
        ),
    ),
    "openstack accel": Process(
        ("nova_accel.cli.openstack_plugin",), ("openstack.accel.v1",)
    ),
}
# Modules that load the code of a command when it runs.
_FRAMES = ("commands", "console")
PROCESSES = {**NOVA_PROCESSES, **_PROGRAMS}


@functools.cache
def list_modules() -> Mapping[str, pathlib.Path]:
    """Return the files of all modules, by name."""
    return {
        _name(path): path
        for package in TOP_PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def list_imports(module: str) -> frozenset[str]:
    """Return the modules of this project that a module imports by name.

    Those of type checkers are not among them, nor those whose names are
    strings: entry points, and modules that are loaded when they are needed.
    """
    tree = ast.parse(list_modules()[module].read_text())
    names = {name for node in _walk(tree) for name in _imported(node)}
    return frozenset(names & list_modules().keys())


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, those of its functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        is_typing = isinstance(child, ast.If) and (
            "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if not is_typing:
            yield child
            yield from _walk(child)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def list_loaded(roots: Iterable[str]) -> frozenset[str]:
    """Return the modules that are loaded with some modules."""
    loaded: set[str] = set()
    pending = [*roots]
    while pending:
        module = pending.pop()
        if module not in loaded and module in list_modules():
            loaded.add(module)
            pending += [module.rpartition(".")[0], *list_imports(module)]
    return frozenset(loaded)


@functools.cache
def list_loaded_by(process: str) -> frozenset[str]:
    """Return the modules that a process of ``PROCESSES`` loads."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    points = setup["options.entry_points"]
    targets = [
        line.partition("=")[2].partition(":")[0].strip()
        for group in PROCESSES[process].groups
        for line in points[group].strip().splitlines()
    ]
    loaded = list_loaded([*PROCESSES[process].modules, *targets])
    if process in _PROGRAMS:
        while actions := _list_actions(loaded) - loaded:
            loaded |= list_loaded(actions)
    return loaded


def _list_actions(modules: Iterable[str]) -> frozenset[str]:
    """Return the modules that frames of commands name by strings."""
    return frozenset(
        name
        for module in modules
        if module.rpartition(".")[2] in _FRAMES
        for node in ast.walk(ast.parse(list_modules()[module].read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (name := node.value.partition(":")[0]) in list_modules()
    )


@functools.cache
def list_inside_nova() -> frozenset[str]:
    """Return the modules that nova-compute, -scheduler and -api load."""
    return frozenset().union(*map(list_loaded_by, NOVA_PROCESSES))


@functools.cache
def find_circle(module: str) -> str:
    """Return the name of a module's circle."""
    names = {p: circle.name for circle in CIRCLES for p in circle.prefixes}
    prefix = module
    while prefix and prefix not in names:
        prefix = prefix.rpartition(".")[0]
    if prefix:
        return names[prefix]
    return HEART if module in list_inside_nova() else HOST_COMMANDS


@functools.cache
def list_members() -> Mapping[str, Collection[str]]:
    """Return the modules of each circle, by its name."""
    members: dict[str, list[str]] = {circle.name: [] for circle in CIRCLES}
    for module in list_modules():
        members[find_circle(module)].append(module)
    return members


def list_sums() -> Mapping[str, Collection[str]]:
    """Return the modules of several circles, and those inside Nova."""
    members = list_members()
    return {
        name: [module for circle in parts for module in members[circle]]
        for name, parts in SUMS.items()
    } | {"inside Nova": list_inside_nova()}


def list_arrows() -> frozenset[tuple[str, str]]:
    """Return pairs of circles of which the first one imports the second."""
    return frozenset(
        (source, target)
        for module in list_modules()
        for imported in list_imports(module)
        if (source := find_circle(module)) != (target := find_circle(imported))
    )


def count_lines(modules: Iterable[str]) -> int:
    """Return the number of lines of some modules."""
    files = list_modules()
    return sum(len(files[m].read_text().splitlines()) for m in modules)


def main() -> None:
    """Print the lines of circles, of their sums, and of processes."""
    loaded = {name: list_loaded_by(name) for name in PROCESSES}
    for name, modules in {**list_members(), **list_sums(), **loaded}.items():
        print(f"{name:<38} {len(modules):>4} {count_lines(modules):>7}")


if __name__ == "__main__":
    main()
