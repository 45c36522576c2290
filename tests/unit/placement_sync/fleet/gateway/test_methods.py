# SPDX-License-Identifier: Apache-2.0
"""The gateway passes on what it knows, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from placement_sync.fleet.gateway import methods

_UUID = "0a2f8a4e-6d52-4d2c-9d1e-3a5d6c7b8e9f"
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_path_is_parsed_as_it_was_built(name: str) -> None:
    is_of_server = methods.METHODS[name].kind == methods.SERVERS
    target = _UUID if is_of_server else "node-1.example.org"
    path = methods.build_path(name, target)
    assert methods.parse_path(path) == (name, target)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1/servers/painter/show",
        f"/v2/servers/{_UUID}/show",
        f"/v1/hosts/{_UUID}/show",
        f"/v1/servers/{_UUID}/drain",
        f"/v1/servers/{_UUID}/show/",
        "/v1/hosts/a%2fb/drain",
        "/v1/hosts/a/../drain",
        f"/v1/hosts/{'n' * 256}/drain",
    ],
)
def test_other_paths_do_not_exist(path: str) -> None:
    with pytest.raises(LookupError):
        methods.parse_path(path)


@given(st.sampled_from(sorted(methods.METHODS)), _json)
def test_a_body_has_known_arguments_or_is_refused(
    name: str, body: Any
) -> None:
    try:
        arguments = methods.check_arguments(name, body)
    except errors.MalformedError:
        return
    method = methods.METHODS[name]
    assert arguments.keys() <= method.texts | method.lists


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "x" * 1025},
        {"reason": ["x"]},
        {"devices": _UUID},
        {"devices": [1]},
        {"devices": [_UUID] * 4097},
        {"author": "root"},
    ],
)
def test_a_body_of_another_form_is_refused(body: Any) -> None:
    with pytest.raises(errors.MalformedError):
        methods.check_arguments("drain", body)
