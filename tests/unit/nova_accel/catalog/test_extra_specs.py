# SPDX-License-Identifier: Apache-2.0
"""The table of extra specs agrees with the parsers and with its page."""

import importlib.util
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.catalog import extra_specs
from nova_accel.model import flavors

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "doc/source/user/extra-specs.rst"
BY_KEY = {spec.key: spec for spec in extra_specs.TABLE}
WORDS = [spec for spec in extra_specs.TABLE if spec.choices]
# A key, not the end of another word.
WRITTEN = re.compile(r"(?<![a-z_])accelerator:([a-z_]+)")


def page() -> str:
    """Return the page's source after the build's substitutions."""
    path = ROOT / "doc/source/_ext/extra_specs_page.py"
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None and module_spec.loader is not None
    module: Any = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return str(module.filled(PAGE.read_text()))


def read(specs: dict[str, str]) -> object:
    """Return the results of all parsers of extra specs."""
    return (
        flavors.parse_selection_policy(specs),
        flavors.parse_options(specs),
        flavors.parse_groups(specs),
    )


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("numa_policy", flavors.NumaPolicy),
        ("locality", flavors.Locality),
        ("packing", flavors.Packing),
        ("display", flavors.Switch),
        ("ramfb", flavors.Switch),
        ("rom", flavors.Switch),
    ],
)
def test_allowed_values_are_those_of_the_parser(
    key: str, kind: type[flavors.SpecValue]
) -> None:
    assert list(BY_KEY[key].choices) == [word.value for word in kind]


@pytest.mark.parametrize("spec", WORDS, ids=lambda spec: spec.key)
def test_the_parser_reads_each_allowed_value(
    spec: extra_specs.ExtraSpec,
) -> None:
    beside = {f"{flavors.NAMESPACE}display": "on"}
    seen = [
        read(beside | {f"{flavors.NAMESPACE}{spec.key}": value})
        for value in spec.choices
    ]
    for first, other in itertools.combinations(seen, 2):
        assert first != other
    without = read({} if spec.key == "display" else beside)
    if spec.default:
        assert without == seen[list(spec.choices).index(spec.default)]
    else:
        assert spec.default_in_words
        # The display that ramfb needs is there without "display" too.
        assert without not in seen or spec.key == "display"


@given(st.sampled_from(WORDS), st.text(max_size=20))
def test_the_parser_refuses_other_values(
    spec: extra_specs.ExtraSpec, value: str
) -> None:
    given_specs = {f"{flavors.NAMESPACE}{spec.key}": value}
    if value.strip().lower() in spec.choices:
        return
    with pytest.raises(errors.MalformedError) as raised:
        read(given_specs)
    assert spec.allowed in str(raised.value)


@pytest.mark.parametrize("spec", extra_specs.TABLE, ids=lambda spec: spec.key)
def test_an_extra_spec_is_complete(spec: extra_specs.ExtraSpec) -> None:
    assert spec.accepts(spec.example)
    assert bool(spec.choices) != bool(spec.form)
    assert bool(spec.form) == bool(spec.form_in_words)
    assert bool(spec.default) != bool(spec.default_in_words)
    assert not spec.default or spec.accepts(spec.default)
    assert extra_specs.find(f"{flavors.NAMESPACE}{spec.key}") is spec
    assert spec.meaning.endswith(".") and spec.since
    assert all(meaning for meaning in spec.choices.values())


def test_no_other_key_is_in_code_or_documentation() -> None:
    """Nova's API refuses keys that are not in the table."""
    files = [
        path
        for top in ("nova_accel", "placement_sync", "filters", "virt_hooks")
        for path in (ROOT / top).rglob("*.py")
    ]
    files += (ROOT / "doc/source").rglob("*.rst")
    keys = {
        (str(path.relative_to(ROOT)), key)
        for path in files
        for key in WRITTEN.findall(path.read_text())
    }
    assert ("doc/source/admin/gpus.rst", "display") in keys
    assert {
        (path, key)
        for path, key in keys
        if not any(key.startswith(prefix) for prefix in BY_KEY)
    } == set()


@pytest.mark.parametrize("spec", extra_specs.TABLE, ids=lambda spec: spec.key)
def test_the_page_describes_each_extra_spec(
    spec: extra_specs.ExtraSpec,
) -> None:
    text = page()
    assert f"``{spec.name}``\n" in text
    assert f"{flavors.NAMESPACE}{spec.key}={spec.example}" in text
    entry = text.partition(f"``{spec.name}``\n")[2]
    for value in spec.choices:
        assert f"``{value}``" in entry
    assert (spec.default or spec.default_in_words) in entry
