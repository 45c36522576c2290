# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, policy


def test_the_first_line_that_matches_counts() -> None:
    rules = policy.parse_policy(
        [
            '{"address": "0000:41:00.0", "use": "off"}',
            '{"address": "0000:41:*", "use": "passthrough"}',
            '{"vendor_id": "10DE", "product_id": "0x1eb8", "max_slots": 4}',
        ]
    )
    assert rules.rule("0000:41:00.0", "10de", "1eb8").use is policy.Use.OFF
    assert rules.rule("0000:41:00.1").use is policy.Use.PASSTHROUGH
    assert rules.rule("0000:af:00.0", "10de", "1eb8").max_slots == 4
    assert rules.rule("0000:af:00.0", "1002", "73a1") == policy.Rule()


def test_without_lines_everything_is_left_to_the_default() -> None:
    assert policy.parse_policy([]).rule("mtty").use is policy.Use.AUTO


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("{", "one JSON object a line"),
        ("[]", "a JSON object"),
        ('{"adress": "*"}', "unknown key 'adress'"),
        ('{"use": "vgpu"}', "use must be one of auto, mdev, passthrough"),
        ('{"use": ["off"]}', "use must be one of"),
        ('{"vendor_id": "nvidia"}', "four hex digits"),
        ('{"address": 7}', "non-empty string"),
        ('{"address": ""}', "non-empty string"),
        ('{"max_slots": 0}', "whole number from 1"),
        ('{"max_slots": true}', "whole number from 1"),
    ],
)
def test_a_bad_line_is_named_with_its_mend(line: str, mend: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        policy.parse_policy(["{}", line])
    assert line in str(caught.value)
    assert mend in str(caught.value)
    assert "[nova_accel] device_spec" in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["address", "vendor_id", "product_id", "use", "max_slots"]
            )
            | st.text(max_size=5),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(json_values)
def test_any_json_is_a_policy_or_a_configuration_error(value: object) -> None:
    try:
        found = policy.parse_policy([json.dumps(value)])
    except errors.ConfigurationError:
        return
    assert isinstance(found.rules[0].use, policy.Use)
