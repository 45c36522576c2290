# SPDX-License-Identifier: Apache-2.0
"""Packages that the core loads by entry points."""

import importlib.metadata
import pathlib
from collections.abc import Callable

import pytest

from nova_accel import errors
from nova_accel.config import extensions
from tests.support import entry_points

GROUP = "nova_accel.samples"
Register = Callable[..., pathlib.Path]


@pytest.fixture
def register(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Register:
    """Return what installs a package with entry points by their names."""

    def install(
        package: str = "other", version: str = "1", **points: str
    ) -> pathlib.Path:
        site = tmp_path / f"{package}-{version}"
        entry_points.install(
            monkeypatch,
            site,
            [
                importlib.metadata.EntryPoint(name, value, GROUP)
                for name, value in points.items()
            ],
            package,
            version,
        )
        return site

    return install


def list_names() -> list[str]:
    return [point.name for point in extensions.list_points(GROUP)]


def test_objects_are_sorted_by_name(register: Register) -> None:
    register(second="json:dumps", first="json:loads")
    register("earlier", third="json:load")
    assert [*extensions.load(GROUP)] == ["first", "second", "third"]


def test_a_package_hides_an_older_one_of_its_name(register: Register) -> None:
    register("Sample-kit", "1", kept="json:loads", removed="json:dumps")
    register("sample_kit", "2", kept="json:loads")
    assert list_names() == ["kept"]
    register("sample.kit", "3")
    assert list_names() == []


@pytest.mark.parametrize("metadata", [None, "Version: 1\n", "\xff"])
def test_a_package_of_damaged_metadata_is_read(
    register: Register, metadata: str | None
) -> None:
    (file,) = register(one="json:loads").glob("*/METADATA")
    file.unlink()
    if metadata:
        file.write_text(metadata, "latin-1")
    assert list_names() == ["one"]


def test_a_package_that_is_installed_later_is_not_read(
    register: Register,
) -> None:
    site = register(one="json:loads")
    assert list_names() == ["one"]
    (file,) = site.glob("*/entry_points.txt")
    file.write_text(f"[{GROUP}]\ntwo = json:loads\n[{GROUP}s]\nx = json:load")
    assert list_names() == ["one"]
    assert not extensions.list_points(f"{GROUP}s")


@pytest.mark.parametrize("value", ["no_such_module:X", "json:no_such_name"])
def test_a_broken_package_is_named(register: Register, value: str) -> None:
    register(broken=value)
    with pytest.raises(errors.ConfigurationError, match="repair or remove"):
        extensions.load(GROUP)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("nova_accel.guest_metadata", {"devices"}),
        ("nova_accel.operations", {"hot_attach"}),
        ("nova_accel.passes", {"reconciler"}),
        ("nova_accel.start_checks", {"doctor"}),
        ("nova_accel.status_extensions", {"usage"}),
    ],
)
def test_the_own_packages_are_registered(group: str, names: set[str]) -> None:
    installed = extensions.list_points(group)
    assert names <= {point.name for point in installed}


def test_a_missing_package_is_named() -> None:
    with pytest.raises(errors.ConfigurationError, match="install nova-accel"):
        extensions.build_one(GROUP, "[1]")


def test_the_first_class_of_a_group_gets_the_context(
    register: Register,
) -> None:
    default: list[int] = []
    assert extensions.build_one(GROUP, "[1]", default) is default
    register(one="json:loads", two="json:dumps")
    assert extensions.build_one(GROUP, "[1]", default) == [1]
    assert extensions.build(GROUP, "[1]") == {"one": [1], "two": '"[1]"'}
