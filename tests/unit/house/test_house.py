# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that no linter knows; the linters are in tox.ini."""

import ast
import collections
import configparser
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.house import words
from tests.unit.house.sources import (
    MODULES,
    PACKAGES,
    PYTHON,
    ROOT,
    SOURCES,
    list_nodes,
    module_name,
    relative,
    tree,
)

MAX_LINES = 600
# Modules and packages in a folder, __init__.py among them.
MAX_ENTRIES = 14

# Functions with effects, which pure code does not call.
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__"}
# Modules in which every exception may be caught, and why.
SEAMS = {
    "filters/candidate_capture.py": "a reason is worth no other error",
    "filters/attached_profiles.py": "other servers never fail",
    "filters/native_flavors.py": "other servers never fail",
    "filters/glance_images.py": "Nova's image API raises any client's",
    "placement_sync/client/nova_client.py": "Nova's client raises all",
    "filters/accelerator_weigher.py": "no order is worth a server not started",
    "nova_accel/cli/application.py": "another package's command raises any",
    "nova_accel/discovery/unoffered_devices.py": "a driver may raise anything",
    "nova_accel/cli/command_manager.py": "a package's import raises any",
    "nova_accel/conformance/driver_calls.py": "a driver may raise anything",
    "nova_accel/doctor/registry.py": "a check may raise anything",
    "nova_accel/host/nova_devices.py": "Nova's parser raises anything",
    "nova_accel/discovery/scan.py": "a driver may raise anything",
    "nova_accel/host/bounded_calls.py": "a caller gets what its work raised",
    "nova_accel/host/execute/technologies/nvml_privileged.py": (
        "Nova's daemon fails in any way"
    ),
    "nova_accel/host/execute/technologies/vgpu_actions.py": (
        "libvirt raises anything"
    ),
    "placement_sync/parallel.py": "a caller gets what a call raised",
    "nova_accel/discovery/plugin.py": "a vendor's driver may raise anything",
    "placement_sync/daemon/loop.py": "a pass runs all of the above, for ever",
    "placement_sync/fleet/compute_rpc.py": "a bus raises its own errors",
    "virt_hooks/spawn/card_modes.py": "a vendor's driver may raise anything",
    "virt_hooks/guest/nodedev.py": "Nova's connection has its own errors",
    "virt_hooks/ironic/collector.py": "an inspection must end",
    "virt_hooks/spawn/lifecycle.py": "the undo runs after any failure",
    "virt_hooks/attach/attach_allocations.py": "Nova's client raises anything",
    "virt_hooks/bypass.py": "other servers never fail",
    "virt_hooks/report/server_allocations.py": "other servers never fail",
    "virt_hooks/attach/attach_rpc.py": "a caller gets an answer, always",
    "virt_hooks/operations/fpga/bitstream_images.py": (
        "Nova's image API raises all"
    ),
    "virt_hooks/error_guards.py": "an addition must never end a Nova service",
    "virt_hooks/spawn/release.py": "a vendor's driver may raise anything",
    "virt_hooks/attach/unified_limits.py": "Keystone's client raises any",
    "virt_hooks/report/usage_extension.py": "Nova's daemon fails in any way",
}
# Methods of Nova's report client that write providers, and the one module of
# nova-compute that calls them.
PROVIDER_WRITES = {
    "delete_resource_provider",
    "post",
    "set_aggregates_for_provider",
    "set_inventory_for_provider",
    "set_traits_for_provider",
    "update_from_provider_tree",
}
PROVIDER_WRITER = "virt_hooks/report/provider_writer.py"
# Imports of the packages whose __init__ has some.
PACKAGE_IMPORTS = {
    "nova_accel.conformance": [
        "nova_accel.conformance.findings",
        "nova_accel.conformance.suite",
    ],
    "nova_accel.model": ["nova_accel.model.device"],
    "virt_hooks.shim": ["virt_hooks.nova_driver"],
}
# Modules beside pure ones that read files or options.
IMPURE = {
    "nova_accel.catalog.loader",
    "nova_accel.config.conf",
    "nova_accel.config.config_source",
    "nova_accel.config.daemon_config",
    "nova_accel.config.extensions",
    "nova_accel.config.library_version",
    "nova_accel.config.logs",
    "nova_accel.config.conf_options",
    "nova_accel.config.spec_validators",
    "nova_accel.config.top_packages",
}
# The lab's kernel modules and QEMU devices are parts of GPL programs.
STANDINS = "tests/lab/standins/"
LICENCES = {"Apache-2.0"}
STANDIN_LICENCES = {*LICENCES, "GPL-2.0-only", "GPL-2.0-or-later"}
IMPORTS: tuple[type[ast.AST], ...] = (ast.Import, ast.ImportFrom)


@functools.cache
def contracts() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def docstrings(path: Path) -> set[int]:
    """Return the ids of the nodes that are documentation, not code."""
    bodies = [
        *(node.body for node in list_nodes(path, ast.Module)),
        *(node.body for node in list_nodes(path, ast.ClassDef)),
        *(node.body for node in list_nodes(path, ast.FunctionDef)),
        *(node.body for node in list_nodes(path, ast.AsyncFunctionDef)),
    ]
    return {
        id(body[0].value)
        for body in bodies
        if body and isinstance(body[0], ast.Expr)
    }


Rule = Callable[[Path], None]
RULES: list[tuple[Rule, list[Path]]] = []


def rule(paths: list[Path]) -> Callable[[Rule], Rule]:
    """Make a check of one file a test of all of these files."""

    def add(check: Rule) -> Rule:
        RULES.append((check, paths))
        return check

    return add


def test_walk_yields_each_kind_of_file() -> None:
    names = {relative(path) for path in SOURCES}
    assert {
        "setup.cfg",
        "nova_accel/config/config_source.py",
        "tests/run",
        "tests/unit/house/test_house.py",
    } <= names
    assert not [name for name in names if name.startswith(".lab")]


@rule(SOURCES)
def licence_is_on_the_first_lines(path: Path) -> None:
    head = path.read_text().splitlines()[:3]
    licences = [line for line in head if "SPDX-License-Identifier: " in line]
    assert licences, f"{relative(path)}: no SPDX header"
    licence = licences[0].partition("Identifier: ")[2].split()[0]
    borrowed = relative(path).startswith(STANDINS)
    assert licence in (STANDIN_LICENCES if borrowed else LICENCES)


@rule(SOURCES)
def no_file_is_too_long(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{relative(path)}: split it"


@rule(MODULES)
def kernel_paths_are_spelled_under_host_only(path: Path) -> None:
    if relative(path).startswith("nova_accel/host/"):
        return
    documentation = docstrings(path)
    spelled = [
        node.lineno
        for node in list_nodes(path, ast.Constant)
        if isinstance(node.value, str)
        and re.search(r"(?<![\w:/])/sys\b", node.value)
        and id(node) not in documentation
    ]
    assert not spelled, f"{relative(path)}: lines {spelled}"


@rule(PYTHON)
def no_import_is_relative_or_of_eventlet(path: Path) -> None:
    for node in list_nodes(path, *IMPORTS):
        roots = {name.partition(".")[0] for name in imported(node)}
        assert "eventlet" not in roots
    assert not any(node.level for node in list_nodes(path, ast.ImportFrom))


@rule(PYTHON)
def no_shell(path: Path) -> None:
    for node in list_nodes(path, ast.Call):
        for keyword in node.keywords:
            assert keyword.arg != "shell" or not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value
            )


@rule(MODULES)
def restricted_libraries_are_not_imported_by_name(path: Path) -> None:
    """import-linter doesn't see an import whose name is a string."""
    restricted = {
        "eventlet", "libvirt", "nova", "openstack", "prometheus_client",
        "pynvml", "pyudev",
    }  # fmt: skip
    for node in list_nodes(path, ast.Call):
        if not node.args:
            continue
        function = ast.unparse(node.func).rpartition(".")[2]
        if function in ("import_module", "__import__"):
            module = ast.unparse(node.args[0]).strip("'\"")
            assert module.partition(".")[0] not in restricted


@rule([p for p in MODULES if relative(p).startswith("virt_hooks/")])
def one_module_of_nova_compute_writes_providers(path: Path) -> None:
    methods = {node.attr for node in list_nodes(path, ast.Attribute)}
    if relative(path) == PROVIDER_WRITER:
        assert methods & PROVIDER_WRITES
    else:
        assert not methods & PROVIDER_WRITES


@rule(MODULES)
def broad_excepts_are_at_the_seams_only(path: Path) -> None:
    if relative(path) in SEAMS:
        return
    for node in list_nodes(path, ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type else "BaseException"
        assert caught not in ("Exception", "BaseException"), node.lineno


@rule(MODULES)
def a_handled_exception_is_logged_once(path: Path) -> None:
    """oslo.log appends it to each other warning and error."""
    for node in list_nodes(path, ast.ExceptHandler):
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
        for call in calls:
            name = ast.unparse(call.func)
            assert name not in ("LOG.warning", "LOG.error"), (
                f"line {call.lineno}: use nova_accel.config.logs"
            )


def find_foreign(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return variables with exceptions of other libraries, with their scope.

    They are those of handlers, and parameters of functions.
    """
    if isinstance(node, ast.ExceptHandler) and node.name and node.type:
        types = getattr(node.type, "elts", [node.type])
        own = ("errors.", "exception.ComputeResourcesUnavailable")
        if not all(ast.unparse(t).startswith(own) for t in types):
            return [(node.name, node)]
    if isinstance(node, ast.FunctionDef):
        return [
            (argument.arg, node)
            for argument in node.args.args
            if argument.annotation is not None
            and ast.unparse(argument.annotation) in FOREIGN
        ]
    return []


def list_public_texts(call: ast.Call) -> list[ast.AST]:
    """Return the arguments of an exception that a server's owner reads."""
    kind = ast.unparse(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if kind.startswith("exception."):
        return [*call.args, *keywords.values()]
    if not kind.startswith("errors."):
        return []
    if "public" in keywords:
        return [keywords["public"]]
    is_local = ast.unparse(keywords.get("is_local", ast.Constant(False)))
    is_public = kind == "errors.BitstreamError" and is_local != "True"
    return [*call.args] if is_public else []


FOREIGN = {"BaseException", "Exception", "OSError"}
SCOPES: tuple[type[ast.AST], ...] = (ast.ExceptHandler, ast.FunctionDef)


@rule(MODULES)
def faults_of_servers_quote_no_other_library(path: Path) -> None:
    """The text of another library's exception may name internal hosts."""
    for variable, scope in (
        pair
        for node in list_nodes(path, *SCOPES)
        for pair in find_foreign(node)
    ):
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call):
                continue
            quoted = [
                name.lineno
                for text in list_public_texts(call)
                for name in ast.walk(text)
                if isinstance(name, ast.Name) and name.id == variable
            ]
            assert not quoted, f"line {quoted} quotes {variable}"


def is_pure(name: str) -> bool:
    """Return whether a module, or its package, is declared to be pure."""
    section = contracts()["importlinter:contract:pure"]
    declared = section["source_modules"].split()
    return any(
        name == prefix or name.startswith(f"{prefix}.") for prefix in declared
    )


def test_each_module_of_the_lower_layers_is_declared_pure() -> None:
    section = contracts()["importlinter:contract:library"]
    lower_layers = section["layers"].split("host\n")[1]
    packages = [f"nova_accel.{n}" for n in re.findall(r"\w+", lower_layers)]
    undeclared = {
        name
        for path in MODULES
        if (name := module_name(path)).startswith(tuple(packages))
        and path.name != "__init__.py"
        and not is_pure(name)
    }
    assert undeclared == IMPURE


@rule([path for path in MODULES if is_pure(module_name(path))])
def pure_code_calls_nothing_with_an_effect(path: Path) -> None:
    for node in list_nodes(path, ast.Call):
        assert ast.unparse(node.func) not in EFFECTS, node.lineno


def test_every_package_is_in_a_wheel() -> None:
    listed: list[str] = []
    for place in (ROOT, ROOT / "tools/conformance"):
        setup = configparser.ConfigParser()
        setup.read(place / "setup.cfg")
        listed += setup["options"]["packages"].split()
    present = [
        module_name(path) for path in MODULES if path.name == "__init__.py"
    ]
    assert sorted(listed) == sorted([*present, "nova.virt.accel"])
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()


def test_the_shim_is_two_lines_and_no_package_is_called_nova() -> None:
    shim = tree(ROOT / "virt_hooks/shim/__init__.py")
    code = [node for node in shim.body if not isinstance(node, ast.Expr)]
    assert [ast.unparse(node) for node in code] == [
        "from virt_hooks.nova_driver import AccelLibvirtDriver",
        "__all__ = ['AccelLibvirtDriver']",
    ]
    assert not (ROOT / "nova").exists()


@rule([path for path in MODULES if path.name == "__init__.py"])
def packages_import_nothing_but_their_own_types(path: Path) -> None:
    """config_source runs before Nova chose its concurrency."""
    imports = list_nodes(path, *IMPORTS)
    names = [name for node in imports for name in imported(node)]
    assert names == PACKAGE_IMPORTS.get(module_name(path), [])


def test_entry_points_name_code_that_exists() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for lines in setup["options.entry_points"].values():
        for line in lines.strip().splitlines():
            target = line.partition("=")[2].strip()
            module, _, attribute = target.partition(":")
            path = ROOT / (module.replace(".", "/") + ".py")
            assert path.is_file(), target
            defined = {
                node.name
                for node in tree(path).body
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
            } | assigned(tree(path))
            # Nova's validators of extra specs are whole modules.
            assert not attribute or attribute in defined, target


def assigned(module: ast.Module) -> set[str]:
    """Return the names of a module's variables."""
    return {
        ast.unparse(target)
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }


def defined(path: Path) -> set[str]:
    """Return names that a module defines, and those of methods."""
    names = set()
    for node in tree(path).body:
        if isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef)
            }
    return names


def places() -> list[str]:
    text = (ROOT / "CONTRIBUTING.rst").read_text()
    table = text[text.index("\nWhere is what\n") :]
    packages = "|".join(PACKAGES)
    return re.findall(rf"``((?:{packages})\.[\w.]+)``", table)


def test_the_table_of_places_is_there() -> None:
    assert len(places()) > 60


@pytest.mark.parametrize("place", places())
def test_each_place_that_is_named_exists(place: str) -> None:
    modules = {module_name(path): path for path in MODULES}
    module = max(
        (name for name in modules if f"{place}.".startswith(f"{name}.")),
        key=len,
    )
    attribute = place[len(module) + 1 :]
    assert not attribute or attribute in defined(modules[module])
    assert modules[module].name != "__init__.py"


def test_a_folder_has_at_most_14_entries() -> None:
    entries = {
        relative(folder): {
            path.name
            for path in folder.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").is_file()
        }
        for folder in {path.parent for path in PYTHON}
    }
    assert not {
        folder: names
        for folder, names in entries.items()
        if len(names) > MAX_ENTRIES
    }


# A protocol and what implements it may share a name.
PROTOCOLS = {"NodeDevices"}


CLASS_HOMES: dict[str, set[str]] = collections.defaultdict(set)


@rule(MODULES)
def a_class_name_is_used_once(path: Path) -> None:
    for node in list_nodes(path, ast.ClassDef):
        CLASS_HOMES[node.name].add(relative(path))
        homes = CLASS_HOMES[node.name]
        assert len(homes) == 1 or node.name in PROTOCOLS, homes


def test_each_protocol_shares_its_name() -> None:
    find_broken()
    assert all(len(CLASS_HOMES[name]) > 1 for name in PROTOCOLS)


@rule(PYTHON)
def no_word_of_the_list_is_used(path: Path) -> None:
    hits = words.describe_hits(path)
    assert not hits, "\n".join(["see tests/unit/house/words.py", *hits])


@functools.cache
def find_broken() -> dict[Rule, list[str]]:
    """Return the breaches by rule; each file is parsed once for all rules."""
    broken: dict[Rule, list[str]] = collections.defaultdict(list)
    applied = [(check, frozenset(paths)) for check, paths in RULES]
    for path in SOURCES:
        for check, paths in applied:
            if path not in paths:
                continue
            try:
                check(path)
            except AssertionError as error:
                broken[check].append(f"{relative(path)}: {error}")
    return broken


@pytest.mark.parametrize(
    ("check", "paths"), RULES, ids=[check.__name__ for check, _ in RULES]
)
def test_each_file_keeps_the_rule(check: Rule, paths: list[Path]) -> None:
    assert paths
    assert set(paths) <= set(SOURCES)
    broken = find_broken().get(check, [])
    assert not broken, "\n".join(broken)
