#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metadata definitions of the ``accelerator:`` extra specs, for Glance.

Horizon and Skyline offer the keys and their values in the form of a flavor's
metadata, once ``glance-manage db_load_metadefs`` has read the file. It is
generated from the table of Nova's validators; a test renews it.
"""

import json
import pathlib
from typing import Any

from nova_accel.catalog import extra_specs
from nova_accel.model import flavors

ROOT = pathlib.Path(__file__).parents[1]
PATH = ROOT / "filters/metadefs/compute-accelerators.json"
# Glance: docs "Metadata Definitions", etc/metadefs/README.
_ACRONYMS = frozenset({"fpga", "numa", "rom"})
_NAMESPACE = "OS::Compute::NovaAccel"


def build() -> dict[str, Any]:
    """Return the namespace with a property for each extra spec."""
    return {
        "namespace": _NAMESPACE,
        "display_name": "Accelerators",
        "description": (
            "How a server gets its accelerators, with nova-accel. Which"
            " devices it gets is requested by resources and traits."
        ),
        "visibility": "public",
        "protected": True,
        "resource_type_associations": [
            {"name": "OS::Nova::Flavor", "prefix": flavors.NAMESPACE}
        ],
        "properties": {
            spec.key: _build_property(spec) for spec in extra_specs.TABLE
        },
    }


def render() -> str:
    """Return the content of the file."""
    return json.dumps(build(), indent=4) + "\n"


def _build_property(spec: extra_specs.ExtraSpec) -> dict[str, Any]:
    lines = [spec.meaning]
    lines += [f"{value}: {text}" for value, text in spec.choices.items()]
    if not spec.default:
        lines.append(f"Without it {spec.default_in_words}.")
    fields: dict[str, Any] = {
        "title": _build_title(spec.key),
        "description": " ".join(lines).replace("``", ""),
        "type": "string",
    }
    if spec.choices:
        fields["enum"] = list(spec.choices)
    else:
        fields["pattern"] = f"^{spec.form}$"
    if spec.default:
        fields["default"] = spec.default
    return fields


def _build_title(key: str) -> str:
    words = [
        word.upper() if word in _ACRONYMS else word for word in key.split("_")
    ]
    text = " ".join(words)
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
