# SPDX-License-Identifier: Apache-2.0
"""The rule of a device determines how its functions are scrubbed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import scrub
from nova_accel.config import policy
from nova_accel.model import actions

GPU, SOUND = "0000:71:00.0", "0000:71:00.1"
COMMAND = "/usr/local/sbin/wipe"

functions = st.lists(
    st.builds(
        scrub.ReleasedFunction,
        address=st.integers(0, 0xFF).map(lambda n: f"0000:{n:02x}:00.0"),
        driver=st.sampled_from(["", "nvme", "unknown"]),
        is_resettable=st.booleans(),
    ),
    unique_by=lambda function: function.address,
    max_size=4,
)
rules = st.builds(
    policy.Rule,
    scrub=st.sampled_from(["", policy.RESET, policy.NONE]),
    scrub_command=st.sampled_from(["", COMMAND]),
)


def kinds(
    due: tuple[actions.Action, ...], address: str
) -> list[type[actions.Action]]:
    return [
        type(action)
        for action in due
        if getattr(action, "function", "") == address
    ]


# -- the plan ---------------------------------------------------------------


@given(functions=functions, rule=rules)
def test_no_function_is_reset_under_a_driver_of_the_host(
    functions: list[scrub.ReleasedFunction], rule: policy.Rule
) -> None:
    drivers = {function.address: function.driver for function in functions}
    for action in scrub.plan(functions, rule):
        if isinstance(action, actions.BindDriver):
            assert action.before == drivers[action.function]
            drivers[action.function] = action.driver
        elif isinstance(action, actions.ResetFunction):
            assert drivers[action.function] == ""
    # Each function has its driver back.
    assert drivers == {
        function.address: function.driver for function in functions
    }


@given(functions=functions, rule=rules)
def test_free_functions_are_reset_unless_policy_differs(
    functions: list[scrub.ReleasedFunction], rule: policy.Rule
) -> None:
    due = scrub.plan(functions, rule)
    for function in functions:
        is_reset = actions.ResetFunction in kinds(due, function.address)
        is_free = function.is_resettable and not function.driver
        assert is_reset is (
            rule.scrub == policy.RESET or (not rule.scrub and is_free)
        )


@given(functions=functions, rule=rules)
def test_the_command_comes_last_and_once(
    functions: list[scrub.ReleasedFunction], rule: policy.Rule
) -> None:
    due = scrub.plan(functions, rule)
    commands = [
        action for action in due if isinstance(action, actions.RunScrub)
    ]
    if not rule.scrub_command or not functions:
        assert commands == []
        return
    assert commands == [due[-1]]
    assert commands[0].function == functions[0].address


@pytest.mark.parametrize(
    ("technology", "expected"),
    [
        ("passthrough", (GPU, SOUND)),
        ("vf", (GPU, SOUND)),
        ("fpga", ()),
        ("mdev", ()),
        ("vendor-vfio", ()),
    ],
)
def test_only_undivided_functions_are_scrubbed(
    technology: str, expected: tuple[str, ...]
) -> None:
    claim = model.Claim(
        consumer="a",
        provider="p",
        device=GPU,
        profile="x",
        slot=GPU,
        parent=GPU,
        handle=GPU,
        technology=technology,
        members=(SOUND,),
    )
    assert scrub.list_functions(claim) == expected


# -- the answer -------------------------------------------------------------


@given(
    rest=st.binary(min_size=12, max_size=12),
    ids=st.binary(min_size=4, max_size=4),
    identity=st.none() | st.binary(min_size=4, max_size=4),
)
def test_a_config_header_is_an_answer(
    rest: bytes, ids: bytes, identity: bytes | None
) -> None:
    header = ids + rest
    is_silent = set(header) == {0xFF}
    assert scrub.is_answer(header, ids) is not is_silent
    # The ids of a VF read as ones: only the rest counts.
    assert scrub.is_answer(b"\xff" * 4 + rest, None) is (set(rest) != {0xFF})
    assert not scrub.is_answer(b"\xff" * 16, identity)
    if identity is not None and identity != ids:
        assert not scrub.is_answer(header, identity)
    for size in range(16):
        assert not scrub.is_answer(header[:size], None)


# -- the line ---------------------------------------------------------------


def test_a_line_without_scrub_has_the_default() -> None:
    (rule,) = policy.parse_rules(["{}"]).rules
    assert (rule.scrub, rule.scrub_command) == ("", "")


@pytest.mark.parametrize("use", ["auto", "vf", "passthrough"])
@pytest.mark.parametrize("word", ["reset", "none"])
def test_a_line_sets_scrub_and_command(use: str, word: str) -> None:
    line = (
        f'{{"use": "{use}", "scrub": "{word}", "scrub_command": "{COMMAND}"}}'
    )
    (rule,) = policy.parse_rules([line]).rules
    assert (rule.scrub, rule.scrub_command) == (word, COMMAND)


@pytest.mark.parametrize("use", ["vgpu", "mig", "mdev", "fpga", "off"])
@pytest.mark.parametrize(
    "key", ['"scrub": "reset"', f'"scrub_command": "{COMMAND}"']
)
def test_scrub_has_no_effect_on_partitions_and_regions(
    use: str, key: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match="has no effect"):
        policy.parse_rules([f'{{"use": "{use}", {key}}}'])


@pytest.mark.parametrize(
    "value",
    [
        '"scrub": "erase"',
        '"scrub": ""',
        '"scrub": true',
        '"scrub_command": "wipe"',
        '"scrub_command": "/usr/bin/wipe -a"',
        '"scrub_command": "/usr/../bin/wipe"',
        '"scrub_command": "/usr/bin/wipe/"',
        '"scrub_command": "/usr/bin/w;ipe"',
        '"scrub_command": ["/usr/bin/wipe"]',
    ],
)
def test_bad_scrub_values_are_refused(value: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        policy.parse_rules([f"{{{value}}}"])
    assert value.partition('"')[2].partition('"')[0] in caught.value.hint


@given(
    path=st.text(st.sampled_from("/.ab-\n "), max_size=12)
    | st.lists(st.sampled_from(["a", "b-c", "", ".", "..", ".a"])).map(
        lambda parts: "/" + "/".join(parts)
    )
)
def test_a_command_is_one_absolute_path(path: str) -> None:
    parts = path.split("/")[1:]
    is_plain = path.startswith("/") and all(
        part not in ("", ".", "..") and not {*part} & {"\n", " "}
        for part in parts
    )
    assert actions.is_command_path(path) is is_plain
