# SPDX-License-Identifier: Apache-2.0
"""Directives that generate reference text from the code.

``command-help`` prints the help of a command, ``json-keys`` the keys that a
command prints with ``-f json``, ``host-checks`` a table of the checks of
``nova-accel doctor``, ``features`` one of the versions that features need, and
``circles`` one of the sizes of the circles, and ``processes`` one of what each
process loads of them.
"""

import ast
import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import repeated_options
from docutils import nodes
from docutils.parsers import rst

from nova_accel import model
from nova_accel.catalog import features
from nova_accel.cli import command_manager, commands, inspect_output
from nova_accel.config import policy
from nova_accel.conformance import __main__ as conformance
from nova_accel.doctor import check_report, host_checks, registry
from nova_accel.inventory import tree_builder, unoffered
from nova_accel.model import names, pci, providers
from placement_sync.audit import audit_command, findings, heal
from placement_sync.cli import main
from tools import circles, refresh_catalog


def _parse_cloud_command(arguments: Sequence[str]) -> int:
    """Parse the arguments of a command of ``openstack accel``, or exit."""
    points = command_manager.load_points(command_manager.CLOUD_GROUP)
    manager = command_manager.CommandManager(points)
    factory, name, options = manager.find_command(["accel", *arguments])
    parser = factory(None, None).get_parser(f"openstack {name}")
    parser.parse_args(options)
    return 0


#: Functions with ``argv``, by the words that run them.
COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "nova-accel": commands.main,
    "openstack accel": _parse_cloud_command,
    "placement-sync": main.main,
    "python -m nova_accel.conformance": conformance.main,
    "python tools/refresh_catalog.py": refresh_catalog.main,
}
#: argparse wraps help at two columns less.
_COLUMNS = "80"
_ROOT = providers.ProviderRoot(
    name="node1", uuid="1f2e3d4c-0000-4000-8000-000000000001"
)


def run_command(command: str) -> tuple[Callable[[list[str]], int], list[str]]:
    """Return ``main`` of a command line's program, and its arguments.

    :raises LookupError: no program of this project begins the line.
    """
    for name, run in COMMANDS.items():
        if f"{command} ".startswith(f"{name} "):
            return run, command[len(name) :].split()
    raise LookupError(command)


def help_of(command: str) -> str:
    """Return what ``COMMAND --help`` prints.

    :raises LookupError: there is no such command.
    """
    run, arguments = run_command(command)
    output = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=_COLUMNS),
        contextlib.redirect_stdout(output),
    ):
        try:
            run([*arguments, "--help"])
        except SystemExit as end:
            if end.code:
                raise LookupError(command) from end
    return output.getvalue()


def inspect_keys() -> Any:
    """Return a report of ``nova-accel inspect`` that has every key."""
    device = model.Device(
        address="0000:5e:00.0",
        plugin="acme",
        technology="fpga",
        vendor="acme",
        model="card",
        resource_class="FPGA",
        counters={"FPGA": 1},
        slots=("0000:5e:00.0",),
        profiles=(
            model.Profile(
                name="p",
                charges={"FPGA": 1},
                trait="CUSTOM_FPGA_REGION",
                available=1,
            ),
        ),
        partitions=(
            model.Partition(profile="p", parent="0000:5e:00.0", handle="h"),
        ),
        parent="0000:5e:00.0",
        region=model.Region(card="0000:5e:00.0", number=0, function="f"),
        fault="fault",
        drain="drain",
        marks_unknown="reason",
    )
    card = dataclasses.replace(device, parent="", region=None)
    state = model.HostState(
        devices=(card, dataclasses.replace(device, address="0000:5e:00.0/r")),
        problems=(model.Problem(where="w", reason="r"),),
    )
    claim = model.Claim(
        consumer="c",
        provider=names.provider_uuid(_ROOT.uuid, card.address),
        device=card.address,
        profile="p",
        slot="s",
        parent=card.address,
        handle="h",
        technology="fpga",
    )
    function = pci.PciFunction(
        address=pci.parse_address("0000:01:00.0"),
        vendor="10de",
        product="1eb8",
        class_code=0x30200,
    )
    return inspect_output.as_dict(
        state,
        tree_builder.build_tree(_ROOT, state, policy.DeviceRules()),
        inspect_output.HostContext(claims=(claim,), is_registered=True),
        (
            unoffered.Unoffered(
                address=str(function.address),
                function=function,
                name="n",
                reason="r",
            ),
        ),
    )


def _fill(cls: type[Any], /, **values: Any) -> Any:
    """Return a dataclass whose fields of text are not empty."""
    texts = {
        field.name: field.name
        for field in dataclasses.fields(cls)
        if field.type is str
    }
    return cls(**texts | values)


def audit_keys() -> Any:
    """Return a report of ``nova-accel audit`` that has every key."""
    kind = next(iter(findings.FindingKind))
    finding = _fill(findings.AuditFinding, kind=kind)
    report = findings.AuditReport(
        findings=(finding,), gaps=(_fill(findings.Gap),)
    )
    results = (
        heal.HealResult(finding=finding),
        _fill(heal.HealResult, finding=finding),
    )
    return audit_command.as_dict(_ROOT, report, results)


def doctor_keys() -> Any:
    """Return a report of ``nova-accel doctor`` that has every key."""
    check = registry.list_checks()[0]
    result = host_checks.CheckResult(
        check=check,
        observations=(host_checks.fail("text", "path"),),
        readings=((("path", "value"),),),
    )
    return check_report.as_dict([result])


#: Reports with every key, by command.
REPORTS = {
    "inspect": inspect_keys,
    "audit": audit_keys,
    "doctor": doctor_keys,
}
# Objects whose keys are names of resource classes, not fixed keys.
_BY_CLASS = {"inventories", "used"}
_WIDTH = 76


def outline(value: Any, key: str = "", indent: int = 0) -> str:
    """Return the keys of a report, nested as in the JSON."""
    label = f'"{key}": ' if key else ""
    if key in _BY_CLASS:
        return f"{label}{{resource class: ...}}"
    if isinstance(value, list | tuple):
        items = [item for item in value if isinstance(item, dict)]
        merged = {name: i for item in items for name, i in item.items()}
        inner = _fields(merged, indent + len(label) + 2) if items else "..."
        return f"{label}[{{{inner}}}]" if items else f"{label}[{inner}]"
    if isinstance(value, dict):
        inner = _fields(value, indent + len(label) + 1)
        return f"{label}{{{inner}}}"
    return label.removesuffix(": ")


def _fields(values: dict[str, Any], indent: int) -> str:
    """Return the fields of an object, wrapped below its first one."""
    text, column = "", indent
    for number, (name, value) in enumerate(values.items()):
        field = outline(value, name, indent)
        if number:
            is_long = (
                indent == 1
                or "\n" in field
                or column + len(field) + 3 > _WIDTH
            )
            text += ",\n" + " " * indent if is_long else ", "
            column = indent if is_long else column + 2
        text += field
        column += len(field.rpartition("\n")[2])
    return text


PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
# A log format or a placeholder of an f-string.
_PLACEHOLDER = "..."


def texts_of(node: ast.AST) -> str:
    """Return a string expression with its placeholders as ``...``."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
        return re.sub(r"%(\(\w+\))?[srd]", _PLACEHOLDER, text)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(texts_of, node.values))
    if isinstance(node, ast.FormattedValue):
        return _PLACEHOLDER
    if isinstance(node, ast.BinOp):
        return texts_of(node.left) + texts_of(node.right)
    return ""


def string_texts(path: Path) -> str:
    """Return all strings of a module, one on each line."""
    return "\n".join(
        texts_of(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant | ast.JoinedStr)
    )


class _Generated(rst.Directive):
    """A literal block whose text is computed from the one argument."""

    required_arguments = 1
    final_argument_whitespace = True

    def text(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        block = nodes.literal_block(self.text(), self.text())
        block["language"] = "none"
        return [block]


# An option or argument of a help text, with its indented explanation.
_OPTION = re.compile(
    r"^  (?:--?\w\S*|[A-Z]+(?=  )).*\n(?:    +.*\n)*", re.MULTILINE
)
# Options that the begin of reference/cli explains for all commands.
_COMMON = re.compile(
    r"^  (?:-h, --help|-f \{text,json\}).*\n(?:    +.*\n)*"
    # Each has its own help below.
    r"|^Commands:\n(?:  .*\n)*"
    r"|^output formatters:\n(?s:.*)",
    re.MULTILINE,
)
_EMPTY_GROUP = re.compile(
    r"^(?:options|positional arguments):\n(?=\n|\Z)", re.MULTILINE
)
#: Options of a usage that reference/cli names together, by their name there.
OPTION_SETS = {
    "host options": (
        "[--root DIR|ARCHIVE] [--host NAME] [--host-uuid UUID]"
        " [--os-cloud NAME] [--os-region-name NAME] [--endpoint URL]"
        " [--state-dir DIR] [--config-file FILE] [--timeout SECONDS]"
    ),
    "table options": (
        "[-f {csv,json,table,value,yaml}] [-c COLUMN]"
        " [--quote {all,minimal,none,nonnumeric}] [--noindent]"
        " [--max-width <integer>] [--fit-width] [--print-empty]"
        " [--sort-column SORT_COLUMN] [--sort-ascending | --sort-descending]"
    ),
}


def drop_options(text: str, *others: str) -> str:
    """Return a help text without the options that others explain."""

    # The width of a column depends on the command; lines end at hyphens, too.
    def join(option: re.Match[str]) -> str:
        return re.sub(r"\s", "", option[0])

    explained = {
        join(match) for other in others for match in _OPTION.finditer(other)
    }

    def drop(option: re.Match[str]) -> str:
        return "" if join(option) in explained else option[0]

    return _OPTION.sub(drop, text)


def shorten_help(text: str) -> str:
    """Return a help text without what all commands have.

    :data:`OPTION_SETS` are one word of the usage each.
    """
    usage, _, rest = text.partition("\n\n")
    words = " ".join(usage.split()).replace("[-h] ", "")
    for name, options in OPTION_SETS.items():
        words = words.replace(options, f"[{name}]")
    words = repeated_options.shorten_usage(words)
    if repeated_options.has_options_only(words):
        words = ""
    parts = re.split(r" (?=[\[(])", words)
    line, lines = parts[0], []
    for part in parts[1:]:
        if len(line) + len(part) >= _WIDTH:
            lines.append(line)
            line = " " * 7
        line = f"{line} {part}"
    rest = _COMMON.sub("", rest)
    rest = _EMPTY_GROUP.sub("", rest).rstrip("\n")
    usage = (*lines, line, "") if words else ()
    return "\n".join((*usage, rest)) + "\n"


class _CommandHelp(_Generated):
    """``.. command-help:: COMMAND``, below the command's name.

    The option ``shared`` names commands of the page, divided by commas:
    options that their help explains in the same words are not printed again.
    """

    option_spec: ClassVar = {"shared": rst.directives.unchanged}

    def text(self) -> str:
        text = help_of(self.arguments[0])
        shared = [
            name.strip() for name in self.options.get("shared", "").split(",")
        ]
        if shared == [""]:
            return shorten_help(text)
        text = drop_options(text, *map(help_of, shared))
        return f"{shorten_help(text)}  ...  see {', '.join(shared)}"

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        return [nodes.rubric("", name), *super().run()]


class _JsonKeys(_Generated):
    """``.. json-keys:: COMMAND``"""

    def text(self) -> str:
        return outline(REPORTS[self.arguments[0]]())


class _HostChecks(rst.Directive):
    """``.. host-checks:: ROLE``, a table of the checks of a role."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        rows = [
            (check.name, check.title)
            for check in (
                *registry.list_checks(),
                *registry.list_cloud_checks(),
            )
            if check.role == self.arguments[0]
        ]
        return [make_table((24, 76), ("Check", "Condition"), rows)]


# Of a Debian; the page has them once.
_VERSIONS = re.compile(
    r"(?<=Debian 1[23]): Linux \S+, libvirt \S+, QEMU [\d.]+"
)
#: Columns of the table of features.
_PROGRAMS = (features.LINUX, features.QEMU, features.LIBVIRT)


def feature_rows() -> list[tuple[str, ...]]:
    """Return name, versions, and place of the trial of each feature."""
    return [
        (
            feature.name,
            *(features.join(feature.minimum(name)) for name in _PROGRAMS),
            str(feature.nova),
            f"{feature.trial.value}: {_VERSIONS.sub('', feature.place)}",
        )
        for feature in features.TABLE
    ]


class _Features(rst.Directive):
    """``.. features::``, a table of the versions that features need."""

    def run(self) -> list[nodes.Node]:
        head = ("Feature", *_PROGRAMS, "Nova", "Tried")
        return [make_table((34, 8, 9, 9, 7, 33), head, feature_rows())]


class _Circles(rst.Directive):
    """``.. circles::``, a table of the modules and lines of each circle."""

    def run(self) -> list[nodes.Node]:
        counted = {**circles.list_members(), **circles.list_sums()}
        rows = [
            (name, str(len(modules)), f"{circles.count_lines(modules):,}")
            for name, modules in counted.items()
        ]
        return [make_table((40, 30, 30), ("Circle", "Modules", "Lines"), rows)]


class _Processes(rst.Directive):
    """``.. processes::``, a table of the lines that each process loads."""

    def run(self) -> list[nodes.Node]:
        heart = circles.list_members()[circles.HEART]
        rows = [
            (
                name,
                f"{circles.count_lines(loaded):,}",
                f"{circles.count_lines(loaded.intersection(heart)):,}",
            )
            for name in circles.PROCESSES
            if (loaded := circles.list_loaded_by(name))
        ]
        head = ("Process", "Lines", "Of the heart")
        return [make_table((40, 30, 30), head, rows)]


def make_table(
    widths: tuple[int, ...],
    head: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
) -> nodes.table:
    """Return a table of texts; the widths are shares."""
    group = nodes.tgroup("", cols=len(widths))
    for width in widths:
        group += nodes.colspec("", colwidth=width)
    group += nodes.thead("", _row(*head))
    group += nodes.tbody("", *(_row(*row) for row in rows))
    return nodes.table("", group)


def _row(*cells: str) -> nodes.row:
    return nodes.row(
        "",
        *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells),
    )


def setup(app: Any) -> dict[str, bool]:
    """Add the directives to Sphinx."""
    app.add_directive("command-help", _CommandHelp)
    app.add_directive("json-keys", _JsonKeys)
    app.add_directive("host-checks", _HostChecks)
    app.add_directive("features", _Features)
    app.add_directive("circles", _Circles)
    app.add_directive("processes", _Processes)
    return {"parallel_read_safe": True}
