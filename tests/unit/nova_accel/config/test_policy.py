# SPDX-License-Identifier: Apache-2.0
"""device_spec lines are parsed, and bad ones are refused with a hint."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.config.lines import device_spec
from tests.support import strategies


def test_the_first_matching_line_applies() -> None:
    rules = policy.parse_rules(
        [
            '{"address": "0000:41:00.0", "use": "off"}',
            '{"address": "0000:41:*", "use": "passthrough"}',
            '{"vendor_id": "10DE", "product_id": "0x1eb8", "max_slots": 4}',
        ]
    )
    assert (
        rules.rule("0000:41:00.0", "10de", "1eb8").use is policy.DeviceUse.OFF
    )
    assert rules.rule("0000:41:00.1").use is policy.DeviceUse.PASSTHROUGH
    assert rules.rule("0000:af:00.0", "10de", "1eb8").max_slots == 4
    assert rules.rule("0000:af:00.0", "1002", "73a1") == policy.Rule()


def test_without_lines_the_default_applies() -> None:
    assert policy.parse_rules([]).rule("mtty").use is policy.DeviceUse.AUTO


def test_every_key_is_parsed() -> None:
    line = json.dumps(
        {
            "address": "0000:41:00.0",
            "use": "vgpu",
            "profiles": ["A40-*Q", "A40-4C"],
            "max_instances": {"A40-8Q": 3, "A40-4C": 0},
            "sizes": "mixed",
            "num_vfs": 16,
            "vgpu_params": "frame_rate_limiter=0,disable_vnc=1",
        }
    )
    assert policy.parse_rules([line]).rules == (
        policy.Rule(
            address="0000:41:00.0",
            use=policy.DeviceUse.VGPU,
            profiles=("A40-*Q", "A40-4C"),
            max_instances={"A40-8Q": 3, "A40-4C": 0},
            is_mixed=True,
            num_vfs=16,
            vgpu_params="frame_rate_limiter=0,disable_vnc=1",
            line=line,
        ),
    )


def rule_of(line: str) -> policy.Rule:
    return policy.parse_rules([line]).rules[0]


def test_profiles_are_globs_in_one_string_or_many() -> None:
    rule = rule_of('{"profiles": "A40-*Q"}')
    assert rule.offers("A40-8Q")
    assert not rule.offers("A40-8C")
    assert rule_of("{}").offers("anything")


def test_sizes_and_instances_default_to_the_plain_options() -> None:
    usual = policy.Rule(is_mixed=True, is_dynamic=True)
    rules = policy.parse_rules(
        [
            '{"address": "0000:41:*", "sizes": "equal"}',
            '{"address": "0000:42:*", "mig_instances": "static"}',
        ],
        usual,
    )
    assert rules.rule("0000:41:00.0").is_mixed is False
    assert rules.rule("0000:41:00.0").is_dynamic
    assert rules.rule("0000:42:00.0").is_mixed
    assert not rules.rule("0000:42:00.0").is_dynamic
    assert rules.rule("0000:43:00.0") == usual
    assert rule_of("{}").is_mixed is None


@pytest.mark.parametrize(
    ("address", "matching", "other"),
    [
        ({"bus": "41"}, "0000:41:00.0", "0000:42:00.0"),
        ({"bus": "0A", "slot": ".*"}, "0000:0a:1f.7", "0000:0b:1f.7"),
        ({"function": "[0-2]"}, "0001:0a:00.2", "0001:0a:00.3"),
        ({"domain": "10000"}, "10000:e1:00.0", "0000:e1:00.0"),
        ({"slot": "0?"}, "0000:0a:0f.0", "0000:0a:10.0"),
        ({}, "0000:0a:0f.0", "mtty"),
        ("0000:AF:*", "0000:af:00.0", "0000:ae:00.0"),
        ("mtt?", "mtty", "matrix"),
    ],
)
def test_addresses_are_globs_whole_or_in_parts(
    address: object, matching: str, other: str
) -> None:
    rule = rule_of(json.dumps({"address": address}))
    assert rule.matches(matching, "10de", "2235")
    assert not rule.matches(other, "10de", "2235")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("{", "one JSON object a line"),
        ("[]", "a JSON object"),
        ('{"adress": "*"}', "unknown key 'adress'"),
        ('{"use": "off", "use": "mig"}', "use is there twice"),
        ('{"use": "gpu"}', "auto, vgpu, mig, vf, mdev, fpga, pass"),
        ('{"use": ["off"]}', "use must be one of"),
        ('{"use": null}', "use must be one of"),
        ('{"vendor_id": "nvidia"}', "four hex digits"),
        ('{"product_id": 2235}', "four hex digits"),
        ('{"address": 7}', "non-empty string"),
        ('{"address": ""}', "non-empty string"),
        ('{"address": {"buss": "41"}}', "no part 'buss'"),
        ('{"address": {"bus": 41}}', "glob over hexadecimal digits"),
        ('{"address": {"bus": "(41|42)"}}', "regular expressions"),
        ('{"max_slots": 0}', "whole number from 1"),
        ('{"max_slots": true}', "whole number from 1"),
        ('{"num_vfs": -1}', "whole number from 0 to 65535"),
        ('{"num_vfs": 65536}', "whole number from 0 to 65535"),
        ('{"num_vfs": "8"}', "whole number from 0"),
        ('{"profiles": []}', '"use": "off"'),
        ('{"profiles": ["A40-8Q", ""]}', "a glob"),
        ('{"profiles": {"A40-8Q": 1}}', "a glob"),
        ('{"profiles": null}', "a glob"),
        ('{"max_instances": 4}', "numbers by profile name"),
        ('{"max_instances": {"A40-8Q": -1}}', "max_instances of A40-8Q"),
        ('{"max_instances": {"A40-8Q": 1.5}}', "whole number"),
        ('{"max_instances": {"": 1}}', "by profile name"),
        ('{"max_instances": {"A40-*Q": 1}}', "is a glob"),
        (
            '{"profiles": "A40-*Q", "max_instances": {"A40-4C": 1}}',
            "which profiles leaves out",
        ),
        ('{"sizes": "both"}', "equal, mixed"),
        ('{"sizes": true}', "equal, mixed"),
        ('{"mig_instances": "auto"}', "static, dynamic"),
        ('{"vgpu_params": "a=1\\nb=2"}', "name=value,name=value"),
        ('{"vgpu_params": "a"}', "name=value,name=value"),
        ('{"vgpu_params": "a=1,"}', "name=value,name=value"),
        ('{"vgpu_params": ["a=1"]}', "name=value,name=value"),
        ('{"use": "passthrough", "profiles": "*"}', "profiles has no effect"),
        ('{"use": "passthrough", "num_vfs": 4}', "num_vfs has no effect"),
        ('{"use": "off", "num_vfs": 0}', "num_vfs has no effect"),
        ('{"use": "vf", "sizes": "mixed"}', "to one of auto, vgpu"),
        ('{"use": "mig", "sizes": "mixed"}', "sizes has no effect"),
        ('{"use": "vgpu", "mig_instances": "dynamic"}', "to one of auto, mig"),
        ('{"use": "mdev", "vgpu_params": "a=1"}', "vgpu_params has"),
    ],
)
def test_a_bad_line_is_refused_with_a_hint(line: str, hint: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        policy.parse_rules(["{}", line])
    assert line in str(caught.value)
    assert hint in str(caught.value)
    assert "[nova_accel] device_spec" in str(caught.value)


def test_a_passthrough_card_may_have_its_vfs_removed() -> None:
    line = '{"use": "passthrough", "num_vfs": 0}'
    assert rule_of(line).num_vfs == 0


def test_long_parameters_are_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="at most 1023"):
        rule_of(json.dumps({"vgpu_params": f"a={'1' * 1022}"}))


A40 = ("0000:41:00.0", "10de", "2235")


def a_device(*profile_names: str) -> model.Device:
    return model.Device(
        address=A40[0],
        plugin="test",
        technology="vendor-vfio",
        vendor="NVIDIA",
        model="A40",
        vendor_id=A40[1],
        product_id=A40[2],
        resource_class="VGPU",
        counters={"VGPU": 1},
        slots=("0000:41:00.4",),
        profiles=tuple(
            model.Profile(name=name, trait="CUSTOM_X", charges={}, available=1)
            for name in profile_names
        ),
    )


def objections(*lines: str, device: model.Device | None = None) -> list[str]:
    problems = policy.check_lines(
        policy.parse_rules(lines),
        [A40, ("0000:41:00.4", "10de", "2235"), ("mtty", "", "")],
        [device or a_device("A40-4Q", "A40-8Q")],
    )
    return [f"{p.where}: {p.reason}" for p in problems]


def test_matching_lines_are_no_problem() -> None:
    assert objections() == []
    assert objections("{}") == []
    assert objections('{"address": "mtty", "use": "off"}') == []
    # One line for cards of several models.
    assert objections('{"profiles": ["A40-8Q", "T4-4Q"]}') == []


def test_a_line_that_matches_nothing_is_a_problem() -> None:
    (objection,) = objections('{"address": "0000:42:00.0", "use": "mig"}')
    assert '{"address": "0000:42:00.0", "use": "mig"}' in objection
    assert "matches nothing on this host" in objection
    (objection,) = objections('{"vendor_id": "1002"}')
    assert "matches nothing" in objection


def test_a_line_behind_a_wider_one_is_a_problem() -> None:
    (objection,) = objections(
        '{"vendor_id": "10de"}',
        '{"address": "0000:41:00.0", "use": "off"}',
    )
    assert '"use": "off"' in objection
    assert "move it up" in objection


def test_profiles_that_a_card_cant_make_are_a_problem() -> None:
    (objection,) = objections('{"profiles": "A16-*"}')
    assert objection.startswith("0000:41:00.0: offers nothing")
    assert '{"profiles": "A16-*"}' in objection
    assert "it has A40-4Q, A40-8Q" in objection
    # A device without profiles is no problem of the line.
    assert objections('{"profiles": "A16-*"}', device=a_device()) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*device_spec.KEYS, "bus", "function"])
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
        rules = policy.parse_rules([json.dumps(value)])
    except errors.ConfigurationError:
        return
    assert isinstance(rules.rules[0].use, policy.DeviceUse)


@pytest.mark.parametrize(
    ("profile", "is_offered"),
    [
        ("L40S-8Q", False),
        ("A100-1-5CME", True),
        ("T4-2B4", False),
        ("10de:26b9", True),
        ("i915-GVTg_V5_4", True),
    ],
)
def test_profiles_without_a_licence_are_not_offered(
    profile: str, is_offered: bool
) -> None:
    default = policy.Rule(series=frozenset("C"))
    rules = policy.parse_rules(['{"max_instances": {"L40S-8Q": 1}}'], default)
    assert rules.rule("0000:41:00.0").offers(profile) is is_offered
    assert policy.Rule().offers(profile)


def test_a_card_without_a_licensed_profile_is_a_problem() -> None:
    device = strategies.card("0000:41:00.0", 1)
    profile = model.Profile(name="L40S-8Q", charges={}, trait="T", available=1)
    device = dataclasses.replace(device, profiles=(profile,))
    rules = policy.DeviceRules(default=policy.Rule(series=frozenset("CA")))
    (problem,) = policy.check_lines(rules, [], [device])
    assert problem.where == "0000:41:00.0"
    assert "licensed_series = A,C has no licence" in problem.reason
    assert "L40S-8Q" in problem.reason
