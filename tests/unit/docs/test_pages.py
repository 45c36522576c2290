# SPDX-License-Identifier: Apache-2.0
"""Names and messages on pages exist in the code, and pages stay short."""

import ast
import re

import pytest

from nova_accel.catalog import loader
from nova_accel.doctor import registry
from tests.unit.docs import pages

generated = pages.extension("generated")
fractions = pages.extension("gpu_fractions")
repeated_options = pages.extension("repeated_options")
ARCHITECTURE = pages.MANUAL / "contributor/architecture.rst"
CONTRIBUTING = pages.ROOT / "CONTRIBUTING.rst"
OBJECT = re.compile(
    r"``((?:nova_accel|placement_sync|filters|virt_hooks)\.[\w.]+)``"
)
MAX_README, MAX_CONTRIBUTING, MAX_TERMS = 100, 50, 40


def is_defined(name: str) -> bool:
    """Return whether a dotted name is a module, or an object in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = pages.ROOT.joinpath(*parts[:count])
        source = path.with_suffix(".py")
        if source.is_file():
            return is_inside(ast.parse(source.read_text()), parts[count:])
        if path.is_dir():
            # Names of a package's __init__ are those of its modules.
            return count == len(parts) or (path / "__init__.py").is_file()
    return False


def is_inside(node: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    if not names:
        return True
    for child in node.body:
        if isinstance(child, ast.ClassDef) and child.name == names[0]:
            return is_inside(child, names[1:])
        if isinstance(child, ast.FunctionDef) and child.name == names[0]:
            return len(names) == 1
        if isinstance(child, ast.AnnAssign):
            if ast.unparse(child.target) == names[0]:
                return len(names) == 1
    return False


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_named_objects_exist(page: object) -> None:
    assert isinstance(page, type(ARCHITECTURE))
    names = [
        name
        for name in OBJECT.findall(page.read_text())
        # Entry point groups.
        if name not in {"nova_accel.checks", "nova_accel.commands",
                        "nova_accel.domains", "nova_accel.drivers"}
    ]  # fmt: skip
    assert [name for name in names if not is_defined(name)] == []


def test_the_architecture_names_objects() -> None:
    assert len(set(OBJECT.findall(ARCHITECTURE.read_text()))) > 35


def test_private_names_of_nova_are_used() -> None:
    """Names that no code uses any more leave the table."""
    section = CONTRIBUTING.read_text().split("**Private names of Nova")[1]
    listed = re.findall(r"\b(_[A-Za-z_]+)", section)
    source = "\n".join(
        path.read_text()
        for package in generated.PACKAGES
        for path in (pages.ROOT / package).rglob("*.py")
    )
    assert len(listed) > 10
    assert [name for name in listed if name not in source] == []


def test_the_readme_fits_on_two_screens() -> None:
    lines = (pages.ROOT / "README.rst").read_text().splitlines()
    assert len(lines) <= MAX_README


def test_the_rules_fit_on_one_screen() -> None:
    lines = CONTRIBUTING.read_text().splitlines()
    assert lines.index("Where is what") <= MAX_CONTRIBUTING


#: Words that operators search, by the page that answers; questions of the
#: first table of Troubleshooting among them.
SEARCHED = {
    "admin/adopt": ("adopt",),
    "admin/configuration": ("device_spec",),
    "admin/drain": (
        "card has to be taken out",
        "drain",
        "empty a host",
        "maintenance",
        "replace a broken card",
    ),
    "admin/fleet": (
        "card does not appear",
        "which server has which card",
        "who uses this card",
    ),
    "admin/health": (
        "broken card",
        "card is in quarantine",
        "quarantine",
    ),
    "admin/licenses": (
        "guest is unlicensed",
        "licence",
        "unlicensed",
    ),
    "admin/recovery": (
        "ERROR",
        "server is in ERROR after a move",
        "server is in ERROR after a rebuild",
    ),
    "admin/remove": (
        "library has to be removed",
        "remove",
        "uninstall",
        "uninstall nova-accel",
    ),
    "admin/scrub": ("reset",),
    "admin/troubleshooting": (
        "BUILD",
        "GPU is gone after a kernel update",
        "kernel update",
        "No valid host",
        "nova-compute does not start after a change of device_spec",
        "Placement has reserved amounts and no server is there",
        "reserved",
        "reserved and no server",
        "server is stuck in BUILD",
        "stuck",
    ),
    "admin/upgrade": ("upgrade",),
    "install/index": (
        "install",
        "Kolla",
    ),
    "reference/traits": (
        "trait",
        "what a trait means",
    ),
    "user/flavors": (
        "half a GPU",
        "passthrough",
        "quarter of a GPU",
    ),
}


@pytest.mark.parametrize(
    ("word", "name"),
    [(word, name) for name, words in SEARCHED.items() for word in words],
)
def test_a_searched_word_leads_to_a_page(word: str, name: str) -> None:
    """A main entry is first in the results; others follow all pages."""
    text = (pages.MANUAL / f"{name}.rst").read_text()
    entries = re.findall(r"^\.\. index:: (.*)$", text, re.MULTILINE)
    assert f"! {word}" in re.split(r", |; ", ", ".join(entries))


def test_the_order_of_results_names_pages() -> None:
    """A page that is renamed would lose its place in the results."""
    scorer = (pages.MANUAL / "_ext/search_scorer.js").read_text()
    names = re.findall(r'"([a-z/-]{6,})"', scorer)
    assert len(names) > 5
    assert all((pages.MANUAL / f"{name}.rst").is_file() for name in names)


def test_the_page_of_each_check_exists() -> None:
    checks = (*registry.list_checks(), *registry.list_cloud_checks())
    names = {check.page for check in checks}
    assert len(names) > 5
    assert all(
        (pages.MANUAL / f"admin/{name}.rst").is_file() for name in names
    )


def test_the_glossary_is_short() -> None:
    glossary = (pages.MANUAL / "glossary.rst").read_text()
    terms = re.findall(r"^   (\w.*)$", glossary, re.MULTILINE)
    assert 20 < len(terms) <= MAX_TERMS
    assert [term.lower() for term in terms] == sorted(map(str.lower, terms))


def test_messages_of_the_troubleshooting_page_exist() -> None:
    page = (pages.MANUAL / "admin/troubleshooting.rst").read_text()
    cells = re.findall(r"\* - ``([^`]+)``", page)
    source = "\n".join(
        generated.string_texts(path)
        for package in generated.PACKAGES
        for path in (pages.ROOT / package).rglob("*.py")
    )
    # Nova's own text, and a command.
    foreign = ("No valid host", "nova-accel ", "placement-sync ")
    missing = [
        cell
        for cell in cells
        if not cell.startswith(foreign)
        and not all(part in source for part in cell.split(" ... "))
    ]
    assert missing == []
    assert len(cells) > 40


def test_fractions_are_profiles_of_one_share() -> None:
    catalog = loader.load()
    rows = {row[0]: row[1:] for row in fractions.list_rows(catalog)}
    assert rows["A40"] == (
        *("A40-6Q", "A40-12Q", "A40-24Q", "A40-48Q"),
        "10de:2235",
    )
    assert rows["A100 PCIe 40GB, MIG"][:3] == (
        *("A100-1-5C", "A100-2-10C", "A100-3-20C"),
    )
    for model, (*profiles, _) in rows.items():
        for share, name in zip(fractions.SHARES, profiles, strict=True):
            vgpu_type = catalog.find(name)
            if vgpu_type is None:
                assert not name, model
                continue
            gpu = catalog.gpu(vgpu_type.gpu)
            assert gpu is not None
            rest = gpu.memory_mb - share * vgpu_type.framebuffer_mb
            assert 0 <= rest <= gpu.memory_mb // 8, name


def test_the_report_of_inspect_has_all_keys() -> None:
    keys = generated.outline(generated.inspect_keys())
    for key in ("drain", "marks_unknown", "region", "used", "not_offered"):
        assert f'"{key}"' in keys
    assert "resource class" in keys


def test_a_shared_option_is_explained_once() -> None:
    whole = generated.help_of("placement-sync run")
    text = generated.drop_options(generated.help_of("nova-accel drain"), whole)
    assert "--state-dir DIR" in whole
    # It stays in the line of the usage.
    assert text.count("--state-dir DIR") == 1
    assert "  --reason TEXT " in text
    # Its column is narrower, and breaks other lines.
    heal, doctor = map(
        generated.help_of, ("nova-accel heal", "nova-accel doctor")
    )
    assert "*.conf" in heal
    assert "*.conf" not in generated.drop_options(heal, doctor)


def test_a_shared_argument_is_explained_once() -> None:
    drain, undrain = map(
        generated.help_of, ("nova-accel drain", "nova-accel undrain")
    )
    text = generated.shorten_help(generated.drop_options(undrain, drain))
    assert "address of the device" in undrain
    assert "address of the device" not in text
    assert "positional arguments" not in text


def test_an_option_of_two_commands_is_explained_once() -> None:
    nodes = repeated_options.nodes
    first, second = (
        nodes.section("", nodes.title("", name), ids=[name])
        for name in ("accel one", "accel two")
    )
    for section in (first, second):
        for text in ("--host HOST", f"--only {section['ids'][0]}"):
            option = nodes.Element("", nodes.Text(text), objtype="option")
            option["ids"] = [f"{section['ids'][0]} {text}"]
            section.append(option)
    document = nodes.section("", first, second)
    repeated_options.drop_repeated(document)
    assert "--host HOST" in first.astext()
    assert "--host HOST" not in second.astext()
    assert "--only accel two" in second.astext()
    (reference,) = second.findall(nodes.reference)
    assert reference["refid"] == "accel one"
    assert "accel two --host HOST" in second[-1]["ids"]


def test_a_usage_keeps_what_is_required_or_excludes_another() -> None:
    assert (
        repeated_options.shorten_usage(
            "p c [--root DIR|ARCHIVE] [--wait [SECONDS]]\n    (--on | --off)"
            " [--all | --free] --size N [-f {text,json}] [NAME ...]"
        )
        == "p c [options] (--on | --off) [--all | --free] --size N [NAME ...]"
    )


@pytest.mark.parametrize(
    ("command", "is_left_out"),
    [("nova-accel inspect", True), ("nova-accel heal", False)],
)
def test_a_usage_of_options_alone_is_left_out(
    command: str, is_left_out: bool
) -> None:
    text = generated.shorten_help(generated.help_of(command))
    assert ("usage: " not in text) is is_left_out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("nova-accel drain", "host options"),
        ("nova-accel driver plan", "table options"),
    ],
)
def test_a_usage_names_common_options_together(
    command: str, name: str
) -> None:
    text = generated.shorten_help(generated.help_of(command))
    usage, _, options = text.partition("\n\n")
    assert f"[{name}]" in usage
    assert "output formatters" not in options
    page = (pages.MANUAL / "reference/cli.rst").read_text()
    begin = page[: page.index("command-help::")]
    for option in re.findall(r"--[a-z-]+", generated.OPTION_SETS[name]):
        assert name == "table options" or f"``{option}``" in begin


def test_each_command_has_help() -> None:
    page = (pages.MANUAL / "reference/cli.rst").read_text()
    commands = re.findall(r"command-help:: (.*)", page)
    assert len(commands) > 15
    for command in commands:
        assert generated.help_of(command).startswith("usage: ")
