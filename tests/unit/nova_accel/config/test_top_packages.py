# SPDX-License-Identifier: Apache-2.0
"""Packages of other distributions under the names of nova-accel."""

import importlib
import pathlib
import sys
from collections.abc import Iterator

import pytest

from nova_accel.config import top_packages

OWN = str(pathlib.Path(__file__).parents[4])


@pytest.fixture
def place(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    """Return an empty directory, the first one in which Python looks."""
    loaded = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in top_packages.NAMES
    }
    for name in loaded:
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.update(loaded)


def install(place: pathlib.Path, name: str, metadata: str, text: str) -> None:
    """Install a distribution with a file of metadata."""
    info = place / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (info / metadata).write_text(text)


def test_the_checkout_has_its_own_packages() -> None:
    assert top_packages.find_foreign() == ()


@pytest.mark.parametrize("name", top_packages.NAMES)
def test_a_package_that_precedes_is_named(
    place: pathlib.Path, name: str
) -> None:
    (place / name).mkdir()
    (place / name / "__init__.py").write_text("raise SystemExit\n")
    install(place, "phx-filters", "top_level.txt", f"{name}\n")
    (foreign,) = top_packages.find_foreign()
    assert not foreign.is_own
    assert str(foreign).startswith(
        f"Python's package {name} is {place / name} of phx-filters,"
        f" not that of nova-accel in {OWN}: remove it"
    )


def test_a_module_of_the_name_is_foreign_too(place: pathlib.Path) -> None:
    (place / "filters.py").write_text("")
    (foreign,) = top_packages.find_foreign()
    assert not foreign.is_own
    assert f"is {place / 'filters.py'}, not" in str(foreign)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ("top_level.txt", "filters\nother\n"),
        ("RECORD", "filters/__init__.py,sha256=x,1\n"),
    ],
)
def test_files_in_one_directory_are_named(
    place: pathlib.Path, metadata: str, text: str
) -> None:
    install(place, "phx-filters", metadata, text)
    (foreign,) = top_packages.find_foreign()
    assert foreign.is_own
    assert str(foreign).startswith("phx-filters installed files into")


def test_own_metadata_and_damaged_ones_are_no_error(
    place: pathlib.Path,
) -> None:
    install(place, "nova_accel", "top_level.txt", "filters\n")
    (place / "broken-1.0.dist-info").mkdir()
    (place / "broken-1.0.dist-info/top_level.txt").write_bytes(b"\xff")
    (place / "nameless-1.0.dist-info").mkdir()
    (place / "nameless-1.0.dist-info/top_level.txt").write_text("filters")
    assert top_packages.find_foreign() == ()


def test_a_directory_without_init_is_damaged() -> None:
    foreign = top_packages.ForeignPackage("filters", f"{OWN}/filters")
    assert foreign.is_own
    missing = top_packages.ForeignPackage("filters", "")
    assert str(missing).endswith("install nova-accel again")
