# SPDX-License-Identifier: Apache-2.0
"""Nova's own registry validates the accelerator extra specs."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nova", reason="Nova's registry of validators")

from nova import exception
from nova.api.validation.extra_specs import base, validators

from filters import extra_specs as seam
from nova_accel.catalog import extra_specs
from nova_accel.model import flavors

suffixes = st.from_regex(f"({flavors.SUFFIX})?", fullmatch=True)
# Characters that Nova's API accepts in keys and values.
texts = st.text("abcdefghijklmnopqrstuvwxyzONF0123456789-_. :", max_size=40)
chosen = st.sampled_from([spec for spec in extra_specs.TABLE if spec.choices])
PAIRS = [
    (f"{flavors.NAMESPACE}{spec.key}", value)
    for spec in extra_specs.TABLE
    for value in (*spec.choices, spec.example)
]


def refusal(name: str, value: str) -> str:
    """Return Nova's error for a pair, empty if it passes."""
    try:
        validators.validate(name, value)
    except exception.ValidationError as error:
        assert error.code == 400
        return str(error)
    return ""


def test_nova_loads_the_validators_by_entry_point() -> None:
    for validator in seam.register():
        loaded = validators.VALIDATORS[validator.name]
        assert isinstance(loaded, base.ExtraSpecValidator)
        assert type(loaded).__module__ == "filters.extra_specs"
        assert loaded.description
    assert "accelerator" in validators.NAMESPACES


@pytest.mark.parametrize(("name", "value"), PAIRS)
def test_allowed_values_pass(name: str, value: str) -> None:
    assert refusal(name, value) == ""


@given(chosen, texts)
def test_another_value_is_refused_with_the_allowed_ones(
    spec: extra_specs.ExtraSpec, value: str
) -> None:
    name = f"{flavors.NAMESPACE}{spec.key}"
    message = refusal(name, value)
    if value in spec.choices:
        assert message == ""
        return
    assert f"'{value}'" in message and f"'{name}'" in message
    assert message.endswith(f"Allowed are: {', '.join(spec.choices)}.")


@given(texts)
def test_another_key_is_refused_with_the_existing_ones(key: str) -> None:
    name = f"{flavors.NAMESPACE}{key}"
    spec = extra_specs.find(name)
    message = refusal(name, spec.example if spec else "on")
    if spec is not None:
        assert message == ""
        return
    assert f"'{name}'" in message
    for listed in extra_specs.TABLE:
        assert listed.name in message


@pytest.mark.parametrize(
    "key",
    [
        f"{spec.key}{odd}"
        for spec in extra_specs.TABLE
        for odd in ("", " ", "_X", ":", "." * 65)
    ],
)
def test_a_key_must_match_exactly(key: str) -> None:
    name = f"{flavors.NAMESPACE}{key}"
    named = [spec for spec in extra_specs.TABLE if spec.is_named(name)]
    exact = [spec for spec in extra_specs.TABLE if spec.key == key]
    if key.startswith(flavors.BITSTREAM) and key.endswith("_X"):
        exact = [extra_specs.TABLE[-1]]
    assert named == exact


@given(suffixes, st.uuids())
def test_a_bitstream_of_any_group_is_the_id_of_an_image(
    suffix: str, image: uuid.UUID
) -> None:
    name = f"{flavors.NAMESPACE}{flavors.BITSTREAM}{suffix}"
    for value in (str(image), str(image).upper()):
        assert refusal(name, value) == ""
    for value in (image.hex, f" {image}", f"{image}\n", "crypto.gbs", ""):
        assert "the id of an image" in refusal(name, value)


@given(suffixes)
def test_every_group_suffix_of_nova_can_have_a_bitstream(suffix: str) -> None:
    assert refusal(f"resources{suffix}:FPGA", "1") == ""
    name = f"{flavors.NAMESPACE}{flavors.BITSTREAM}{suffix}"
    assert refusal(name, str(uuid.UUID(int=0))) == ""


def test_other_namespaces_are_not_validated() -> None:
    assert refusal("accelerators:locality", "whatever") == ""
    assert refusal("accel:device_profile", "whatever") == ""
    assert "boolean" in refusal("hw:cpu_realtime", "whatever")
