# SPDX-License-Identifier: Apache-2.0
"""Lines of native_flavors."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.config.lines import native_flavors

NATIVE = {"resources:VGPU": "1"}
SERVED = {
    "resources_GPU:VGPU": "1",
    "resources_GPU:CUSTOM_GPU_MEMORY_MB": "4096",
    "trait_GPU:CUSTOM_VGPU_NVIDIA_T4_4Q": "required",
}
LINE = {"replace": NATIVE, "by": SERVED}
OTHERS = st.dictionaries(
    st.sampled_from(["hw:cpu_policy", "trait:CUSTOM_A", "group_policy"]),
    st.text(max_size=3),
)


def parse(*lines: Any) -> tuple[native_flavors.Replacement, ...]:
    return native_flavors.parse_lines(map(json.dumps, lines))


@given(others=OTHERS)
def test_the_inverse_restores_a_flavor(others: dict[str, str]) -> None:
    (line,) = parse(LINE)
    specs = NATIVE | others
    after = line.apply(specs)
    assert after == SERVED | others
    assert line.invert().apply(after) == specs


def test_a_class_of_an_mdev_type_is_replaced() -> None:
    native = {"resources:CUSTOM_SMALL": "2"}
    lines = parse({"replace": native, "by": SERVED})
    assert native_flavors.apply(lines, native) == SERVED


def test_when_is_kept() -> None:
    when = {"trait:CUSTOM_NVIDIA_11": "required"}
    lines = parse(LINE | {"when": when})
    assert native_flavors.apply(lines, NATIVE | when) == SERVED | when
    assert native_flavors.apply(lines, NATIVE) is None


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ({"resources:VGPU": "2"}, "another amount"),
        (SERVED, "a flavor of this library"),
        ({"resources:VCPU": "1"}, "no vGPU"),
    ],
)
def test_other_flavors_stay(specs: dict[str, str], reason: str) -> None:
    assert native_flavors.apply(parse(LINE), specs) is None, reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "write a JSON object"),
        ({"by": SERVED}, "replace must request VGPU, or the class"),
        (LINE | {"by": NATIVE}, "by must request a profile"),
        ({"replace": NATIVE}, "by must request a profile"),
        (LINE | {"replace": SERVED}, "replace must request VGPU"),
        (LINE | {"with": {}}, "unknown key 'with'"),
        (LINE | {"when": "a"}, "when must be an object"),
        (LINE | {"when": {"a": 1}}, "when must be an object"),
        (
            {"replace": {"pci_passthrough:alias": "a1:1"}, "by": SERVED},
            "can't be replaced in requests",
        ),
        (
            {"replace": {"accel:device_profile": "gpu"}, "by": SERVED},
            "can't be replaced in requests",
        ),
    ],
)
def test_a_wrong_line_is_refused_with_what_to_write(
    line: Any, words: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        parse(line)
    assert caught.value.option == "[nova_accel] native_flavors"
    assert caught.value.value == json.dumps(line)
    assert words in caught.value.hint
