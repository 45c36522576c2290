# SPDX-License-Identifier: Apache-2.0
"""Request groups and options are parsed from extra specs as Nova does it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.model import flavors

suffixes = st.from_regex(r"[a-zA-Z0-9_-]{0,64}", fullmatch=True)
words = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


def test_a_gpu_flavor_is_parsed() -> None:
    groups = flavors.parse_groups(
        {
            "resources_GPU1:VGPU": "1",
            "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "8192",
            "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
            "trait_GPU1:CUSTOM_BAD": "forbidden",
            "accelerator:numa_policy": "preferred",
            "hw:cpu_policy": "dedicated",
        }
    )
    assert groups == (
        flavors.RequestGroup(
            suffix="_GPU1",
            resources={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 8192},
            required=frozenset({"CUSTOM_VGPU_NVIDIA_A40_8Q"}),
            forbidden=frozenset({"CUSTOM_BAD"}),
        ),
    )


@given(
    st.dictionaries(
        suffixes,
        st.tuples(
            st.dictionaries(words, st.integers(0, 9), min_size=1),
            st.dictionaries(words, st.sampled_from(["required", "forbidden"])),
        ),
        max_size=4,
    )
)
def test_groups_are_parsed_from_any_flavor(
    groups: dict[str, tuple[dict[str, int], dict[str, str]]],
) -> None:
    specs = {
        f"resources{suffix}:{name}": str(amount)
        for suffix, (resources, _) in groups.items()
        for name, amount in resources.items()
    } | {
        f"trait{suffix}:{name}": value
        for suffix, (_, traits) in groups.items()
        for name, value in traits.items()
    }
    parsed = flavors.parse_groups(specs)
    assert [g.suffix for g in parsed] == sorted(groups)
    for group in parsed:
        resources, traits = groups[group.suffix]
        assert group.resources == resources
        assert group.required | group.forbidden == traits.keys()
        assert not group.required & group.forbidden


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=5)))
def test_any_text_is_parsed_without_an_error(specs: dict[str, str]) -> None:
    for group in flavors.parse_groups(specs):
        assert all(amount >= 0 for amount in group.resources.values())


def test_values_that_are_no_amount_are_ignored() -> None:
    parsed = flavors.parse_groups(
        {"resources:VGPU": "one", "resources:PGPU": "-1", "trait:X": "maybe"}
    )
    assert parsed == (flavors.RequestGroup(suffix="", resources={}),)


def test_the_order_of_extra_specs_does_not_matter() -> None:
    specs = {"resourcesB:VGPU": "1", "resourcesA:PGPU": "2", "traitA:T": "x"}
    backwards = dict(reversed(specs.items()))
    assert flavors.parse_groups(specs) == flavors.parse_groups(backwards)


# -- options of a guest's devices -------------------------------------------


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        ({}, flavors.Options()),
        (
            {"accelerator:display": "on", "accelerator:ramfb": "ON "},
            flavors.Options(has_display=True, has_ramfb=True),
        ),
        ({"accelerator:rom": "off"}, flavors.Options(has_rom=False)),
        ({"accelerator:memory_nodes": "8"}, flavors.Options(memory_nodes=8)),
        ({"accelerator:ramfb": "off"}, flavors.Options(has_ramfb=False)),
        (
            {"accelerator:numa_policy": "preferred", "display": "maybe"},
            flavors.Options(),
        ),
    ],
)
def test_options_are_read_from_their_namespace(
    specs: dict[str, str], options: flavors.Options
) -> None:
    assert flavors.parse_options(specs) == options


@pytest.mark.parametrize("name", ["display", "ramfb", "rom"])
@pytest.mark.parametrize("value", ["yes", "true", "1", "on off"])
def test_a_value_other_than_on_or_off_is_refused(
    name: str, value: str
) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        flavors.parse_options({f"accelerator:{name}": value})
    assert str(caught.value) == (
        f"{value!r} is not a flavor extra spec accelerator:{name};"
        " expected one of: on, off"
    )


@pytest.mark.parametrize("name", ["display", "ramfb", "rom"])
def test_an_empty_value_is_called_empty(name: str) -> None:
    with pytest.raises(errors.MalformedError) as caught:
        flavors.parse_options({f"accelerator:{name}": ""})
    assert str(caught.value) == (
        f"the flavor extra spec accelerator:{name} is empty;"
        " expected one of: on, off"
    )


@pytest.mark.parametrize("display", [{}, {"accelerator:display": "off"}])
def test_ramfb_needs_a_display(display: dict[str, str]) -> None:
    with pytest.raises(errors.MalformedError, match="display=on beside it"):
        flavors.parse_options(display | {"accelerator:ramfb": "on"})


@pytest.mark.parametrize(
    "text", ["", "16", "-1", "1.5", "x", "\N{ARABIC-INDIC DIGIT THREE}"]
)
def test_a_number_of_memory_nodes_is_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError, match="from 0 to 15"):
        flavors.parse_options({"accelerator:memory_nodes": text})
