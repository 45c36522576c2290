# SPDX-License-Identifier: Apache-2.0
"""The real parsers accept the commands on pages."""

import argparse
import itertools
import re
import subprocess
from collections.abc import Sequence

import pytest

from nova_accel.catalog import extra_specs
from nova_accel.doctor import checked_host, registry
from nova_accel.host.sysfs import host_reader
from nova_accel.model import flavors
from tests.hosts import recorded
from tests.unit.docs import pages
from tests.unit.house import test_commands as test_house

generated = pages.extension("generated")
COMMANDS = sorted(
    {
        (pages.name_of(page), tuple(words))
        for page in pages.PAGES
        for words in pages.commands(page.read_text())
    }
)
OWN = [
    (page, words)
    for page, words in COMMANDS
    if any(
        " ".join(words).startswith(f"{name} ") for name in generated.COMMANDS
    )
]
# A command that a sentence names, without arguments.
NAME = re.compile(r"(nova-accel|placement-sync|openstack accel)( [a-z]+){1,2}")


# A command in the remedy of a check, to the end of its sentence.
REMEDY = re.compile(
    r"\b(?:nova-accel|placement-sync|openstack accel) [a-z][^\n;:,()`]*"
)


@pytest.fixture(scope="module")
def remedies() -> list[str]:
    """Return the commands in the remedies of ``doctor`` on any host."""
    checks = (*registry.list_checks(), *registry.list_cloud_checks())
    texts = [check.remedy for check in checks]
    for name in recorded.NAMES:
        host = checked_host.CheckedHost(
            host_reader.HostReader(source=recorded.load(name))
        )
        texts += [
            observation.remedy
            for result in registry.run(registry.list_checks(), host)
            for observation in result.observations
        ]
    lines = {m[0].strip() for t in texts for m in REMEDY.finditer(t)}
    return sorted(x for x in lines if test_house.COMMAND.match(x))


class Parsed(Exception):
    """A command line was accepted; it is not executed."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands end as soon as their arguments are parsed."""
    parse = argparse.ArgumentParser.parse_args

    def stop(
        self: argparse.ArgumentParser, *args: object, **kwargs: object
    ) -> None:
        parse(self, *args, **kwargs)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)


def program_length(line: str) -> int:
    """Return how many words name the program of a command line."""
    return max(
        len(name.split())
        for name in generated.COMMANDS
        if f"{line} ".startswith(f"{name} ")
    )


def test_pages_have_commands() -> None:
    assert len(OWN) > 60


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize(
    ("page", "words"), OWN, ids=lambda value: str(value)[:70]
)
def test_a_command_is_accepted(page: str, words: tuple[str, ...]) -> None:
    assert is_accepted(words), page


@pytest.mark.usefixtures("parse_only")
def test_the_commands_of_remedies_are_accepted(remedies: list[str]) -> None:
    assert len(remedies) > 5
    assert [x for x in remedies if not is_accepted(x.split())] == []


def is_accepted(words: Sequence[str]) -> bool:
    line = " ".join(words)
    main, _ = generated.run_command(line)
    arguments = list(words[program_length(line) :])
    if NAME.fullmatch(line):
        arguments.append("--help")
    try:
        main(arguments)
    except Parsed:
        return True
    except SystemExit as end:
        return end.code == 0
    return True


def test_commands_of_the_repository_exist() -> None:
    output = subprocess.run(  # noqa: S603
        [pages.ROOT / "tests/run", "--list"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    steps = {line.split()[0] for line in output.splitlines() if line.strip()}
    steps |= {"quick", "--whole", "--again", "--list"}
    lab = (pages.ROOT / "tests/lab/lab").read_text()
    for page, words in COMMANDS:
        if words[0] == "tests/run" and len(words) > 1:
            assert words[1] in steps | {"STEP"}, f"{page}: {words}"
        elif words[0] == "tests/lab/lab":
            verb = words[3] if words[1] == "--root" else words[1]
            assert re.search(rf"\b{verb}\b", lab), f"{page}: {words}"


def test_modules_that_are_run_exist() -> None:
    for page, words in COMMANDS:
        if words[:2] == ("python", "-m"):
            path = pages.ROOT / words[2].replace(".", "/")
            is_module = path.with_suffix(".py").is_file()
            assert is_module or (path / "__main__.py").is_file(), page


def test_properties_of_flavors_are_valid() -> None:
    count = 0
    for page, words in COMMANDS:
        if "flavor" not in words or "nvlnk" in " ".join(words):
            continue
        values = [
            word.partition("=")
            for option, word in itertools.pairwise(words)
            if option == "--property"
        ]
        specs = {key: value for key, _, value in values}
        assert flavors.parse_groups(specs) or not any(
            key.startswith("resources") for key in specs
        ), page
        for key, value in specs.items():
            if key.startswith(flavors.NAMESPACE):
                spec = extra_specs.find(key)
                assert spec is not None and spec.accepts(value), (page, key)
        count += len(specs)
    assert count > 20
