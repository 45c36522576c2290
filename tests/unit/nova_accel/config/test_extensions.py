# SPDX-License-Identifier: Apache-2.0
"""Packages that the core loads by entry points."""

import importlib.metadata
import json

import pytest

from nova_accel import errors
from nova_accel.config import extensions

GROUP = "nova_accel.operations"


def register(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    registered = [
        importlib.metadata.EntryPoint(name, value, GROUP)
        for name, value in points.items()
    ]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: registered
    )


def test_objects_are_sorted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, second="json:dumps", first="json:loads")
    assert [*extensions.load(GROUP)] == ["first", "second"]


@pytest.mark.parametrize("value", ["no_such_module:X", "json:no_such_name"])
def test_a_broken_package_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    register(monkeypatch, broken=value)
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
    installed = importlib.metadata.entry_points(group=group)
    assert names <= {point.name for point in installed}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with pytest.raises(errors.ConfigurationError, match="install nova-accel"):
        extensions.load_one(GROUP)


def test_one_object_of_a_group_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(monkeypatch, one="json:loads")
    assert extensions.load_one(GROUP) is json.loads
