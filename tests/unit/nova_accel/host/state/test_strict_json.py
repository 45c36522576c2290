# SPDX-License-Identifier: Apache-2.0
"""Each reader of JSON reports invalid JSON by its own error."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog import vgpu_types
from nova_accel.config.lines import device_spec
from nova_accel.model import attachment, json_codec
from virt_hooks.operations.migration import live_migration_wire

NOT_JSON = ("Infinity", "-Infinity", "NaN", "1e999", "-1e999", "[" * 10_000)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_decoded(value: Any) -> None:
    assert json_codec.loads(json.dumps(value)) == value


@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: text[:9])
def test_invalid_json_is_refused(text: str) -> None:
    for whole in (text, f'{{"number": {text}}}'):
        with pytest.raises(ValueError):
            json_codec.loads(whole)
        with pytest.raises(ValueError):
            json_codec.loads(whole.encode())


def read_attached(number: str) -> None:
    text = (
        f'{{"attached":[{{"number":{number},"profile":"","resources":{{}},'
        '"required":[],"provider":"","slot":"","state":"here","besides":{}}'
        '],"version":1}'
    )
    attachment.parse_metadata({f"{attachment.KEY_PREFIX}0": text})


def parse_libvirt_version(number: str) -> None:
    live_migration_wire.parse_text(
        f'{{"form": 1, "host": {{"libvirt": [{number}], "qemu": [1],'
        ' "kernel": "", "drivers": {}, "has_post_copy": false}, "parts": []}'
    )


def read_catalog(number: str) -> None:
    vgpu_types.parse(
        f'{{"format": {vgpu_types.FORMAT}, "gpus": [{{"key": "x",'
        ' "product": "x", "pci_ids": [], "architecture": "",'
        f' "compute_capability": "", "memory_mb": {number}}}]}}'
    )


def read_device_spec(number: str) -> None:
    device_spec.parse_fields(f'{{"max_slots": {number}}}')


@pytest.mark.parametrize("number", NOT_JSON, ids=lambda text: text[:9])
@pytest.mark.parametrize(
    "read",
    [read_attached, parse_libvirt_version, read_catalog, read_device_spec],
)
def test_each_reader_raises_its_own_error(
    read: Callable[[str], None], number: str
) -> None:
    read("1")
    with pytest.raises(errors.AcceleratorError):
        read(number)
