# SPDX-License-Identifier: Apache-2.0
"""Metadata definitions for Glance agree with the validators of Nova."""

import re

from nova_accel.catalog import extra_specs
from tests.support import golden
from tools import metadata_definitions


def test_the_file_is_that_of_the_table() -> None:
    golden.check(metadata_definitions.PATH, metadata_definitions.render())


def test_values_are_those_that_nova_accepts() -> None:
    content = metadata_definitions.build()
    (association,) = content["resource_type_associations"]
    for key, definition in content["properties"].items():
        spec = extra_specs.find(f"{association['prefix']}{key}")
        assert spec is not None
        values = definition.get("enum", [spec.example])
        assert all(spec.accepts(value) for value in values), key
        assert definition.get("default", values[0]) in values
        assert re.search(definition.get("pattern", ""), values[0])
        assert len(definition["description"]) < 1000
