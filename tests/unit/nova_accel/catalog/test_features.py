# SPDX-License-Identifier: Apache-2.0
"""Versions that features need are written in one place."""

import re

import pytest

from nova_accel.catalog import extra_specs, features
from nova_accel.config import conf_options
from tests.unit.docs import pages

generated = pages.extension("generated")

_VERSION = re.compile(r"\b(Linux|QEMU|libvirt) (\d+(?:\.\d+)+)")


@pytest.mark.parametrize(
    ("number", "version"),
    [(8_006_000, (8, 6, 0)), (11_001_003, (11, 1, 3)), (0, ()), (-1, ())],
)
def test_versions_are_parsed_from_libvirt_s_encoding(
    number: int, version: features.Version
) -> None:
    assert features.parse_number(number) == version


def test_the_manual_has_a_row_for_each_feature() -> None:
    rows = generated.feature_rows()
    assert len({row[0] for row in rows}) == len(features.TABLE) == len(rows)
    assert all(row[-1].partition(": ")[2] for row in rows)
    (row,) = [row for row in rows if row[0] == features.IOMMUFD.name]
    assert row[1:5] == ("6.6", "9.0.0", "12.1.0", "31")


@pytest.mark.parametrize(
    "feature",
    [f for f in features.TABLE if f.trial is features.Trial.REAL],
    ids=lambda feature: feature.name,
)
def test_a_feature_ran_for_real_on_versions_that_it_needs(
    feature: features.Feature,
) -> None:
    versions = _VERSION.findall(feature.place)
    assert {program for program, _ in versions} == {"Linux", "libvirt", "QEMU"}
    for program, text in versions:
        version = tuple(map(int, text.split(".")))
        assert version >= feature.minimum(program)[:2], (program, text)


@pytest.mark.parametrize(
    "feature",
    [f for f in features.TABLE if "migration" in f.name],
    ids=lambda feature: feature.name,
)
def test_a_migration_for_real_names_the_options_of_qemu(
    feature: features.Feature,
) -> None:
    """Debian's kernels have no IOMMUFD: without these options it fails."""
    is_real = feature.trial is features.Trial.REAL
    assert ("enable-migration" in feature.place) is is_real


def test_texts_of_options_have_versions_of_the_table() -> None:
    floors = {
        (program, floor.minimum[:2])
        for feature in features.TABLE
        for program, floor in feature.floors.items()
    }
    texts = [spec.meaning for spec in extra_specs.TABLE]
    texts += [option.help or "" for option in conf_options.OPTIONS]
    named = {
        (program, tuple(map(int, version.split(".")))[:2])
        for text in texts
        for program, version in _VERSION.findall(text)
    }
    assert named
    assert named <= floors
