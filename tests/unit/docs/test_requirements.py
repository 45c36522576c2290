# SPDX-License-Identifier: Apache-2.0
"""Each requirement of setup.cfg admits the constraints of OpenStack.

``tests/functional/contrib/packages`` installs them by pip.
"""

import configparser
import re
from collections.abc import Iterator

import pytest
from packaging import markers, requirements, utils

from tests.unit.docs import pages

_CONSTRAINTS = pages.ROOT / "tests/functional/contrib/packages/constraints"
_RELEASES = sorted(path.stem for path in _CONSTRAINTS.glob("*.txt"))
_PAGE = pages.MANUAL / "install/index.rst"
#: What OpenStack constrains nowhere.
_UNCONSTRAINED = {"ansible-core", "ansible-runner", "nvidia-ml-py"}
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def read_requirements() -> Iterator[requirements.Requirement]:
    setup = configparser.ConfigParser()
    setup.read(pages.ROOT / "setup.cfg")
    lists = (
        setup["options"]["install_requires"],
        *setup["options.extras_require"].values(),
    )
    for line in sorted({line for text in lists for line in text.split()}):
        yield requirements.Requirement(line)


def read_versions(release: str, name: str, python: str) -> set[str]:
    """Return the versions of a package under the constraints of a release."""
    versions = set()
    for line in (_CONSTRAINTS / f"{release}.txt").read_text().splitlines():
        package, _, rest = line.partition("===")
        version, _, marker = rest.partition(";")
        environment = {"python_version": python}
        if utils.canonicalize_name(package) == name and (
            not marker or markers.Marker(marker).evaluate(environment)
        ):
            versions.add(version)
    return versions


REQUIREMENTS = list(read_requirements())


def test_the_constraints_are_of_each_supported_release() -> None:
    assert _RELEASES == ["2025.1", "2025.2", "2026.1", "master-2026-08"]


@pytest.mark.parametrize("python", _PYTHONS)
@pytest.mark.parametrize("release", _RELEASES)
def test_a_release_has_what_is_required_or_the_page_says_so(
    release: str, python: str
) -> None:
    page = " ".join(_PAGE.read_text().split())
    for requirement in REQUIREMENTS:
        name = utils.canonicalize_name(requirement.name)
        versions = read_versions(release, name, python)
        if name in _UNCONSTRAINED:
            assert not versions
            continue
        assert len(versions) == 1, name
        (version,) = versions
        is_newer = not requirement.specifier.contains(version)
        # One sentence of the page for each, or none.
        named = re.findall(
            rf"``{re.escape(str(requirement))}``[^.]*{re.escape(release)}",
            page,
        )
        assert bool(named) is is_newer, (requirement, version)


def test_each_constraint_has_its_source_and_date() -> None:
    for release in _RELEASES:
        text = (_CONSTRAINTS / f"{release}.txt").read_text()
        branch = "master" if "master" in release else f"stable/{release}"
        assert f"openstack/requirements, branch\n# {branch}, of 2026-" in text


def test_each_plain_sentence_of_the_page_is_true() -> None:
    """The page claims that nothing is newer."""
    page = " ".join(_PAGE.read_text().split())
    assert (
        "can be installed under the upper constraints of OpenStack 2025.1 to"
        " 2026.1, and of master of 2026-08" in page
    )
