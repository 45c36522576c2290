# SPDX-License-Identifier: Apache-2.0
"""The rule of a device determines how its functions are scrubbed."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import card_reset, scrub
from nova_accel.config import policy
from nova_accel.model import actions

GPU, SOUND = "0000:71:00.0", "0000:71:00.1"
COMMAND = "/usr/local/sbin/wipe"

released = st.builds(
    card_reset.ReleasedFunction,
    driver=st.sampled_from(["", "nvme", "unknown"]),
    methods=st.sampled_from([(), ("flr",), ("bus",), ("pm", "bus")]),
)
buses = st.lists(
    st.builds(
        card_reset.BusFunctions,
        functions=st.lists(released, min_size=1, max_size=3).map(tuple),
        others=st.sampled_from([(), ("0000:00:00.7",)]),
        bridge=st.sampled_from(["", "0000:00:01.0"]),
    ),
    max_size=3,
).map(lambda cards: [_number(card, bus) for bus, card in enumerate(cards)])
rules = st.builds(
    policy.Rule,
    scrub=st.sampled_from(["", policy.RESET, policy.NONE]),
    scrub_command=st.sampled_from(["", COMMAND]),
)
Buses = list[card_reset.BusFunctions]


def _number(
    card: card_reset.BusFunctions, bus: int
) -> card_reset.BusFunctions:
    """Return functions on one bus, each with its address."""
    return dataclasses.replace(
        card,
        functions=tuple(
            dataclasses.replace(
                function,
                address=f"0000:{bus:02x}:00.{number}",
                bound=function.driver,
            )
            for number, function in enumerate(card.functions)
        ),
    )


def reset_addresses(due: tuple[actions.Action, ...]) -> set[str]:
    reset = set()
    for action in due:
        if isinstance(action, actions.ResetFunction):
            reset.add(action.function)
        elif isinstance(action, actions.ResetTogether):
            reset.update(action.functions)
    return reset


# -- the plan ---------------------------------------------------------------


@given(buses=buses, rule=rules, is_refused=st.booleans())
def test_no_function_is_reset_under_a_driver_of_the_host(
    buses: Buses, rule: policy.Rule, is_refused: bool
) -> None:
    before = {f.address: f.bound for bus in buses for f in bus.functions}
    drivers = dict(before)
    for action in scrub.plan(buses, rule, is_refused=is_refused):
        if isinstance(action, actions.BindDriver):
            assert action.before == drivers[action.function]
            drivers[action.function] = action.driver
        elif isinstance(action, actions.ResetFunction):
            assert drivers[action.function] == ""
        elif isinstance(action, actions.ResetTogether):
            # VFIO's reset needs all functions on the bus.
            bus = next(
                b for b in buses if b.functions[0].address == action.function
            )
            assert action.functions == tuple(f.address for f in bus.functions)
            assert bus.is_bus_alone
            assert {drivers[f] for f in action.functions} == {"vfio-pci"}
    # Each function has its driver back.
    assert drivers == before


@given(buses=buses, rule=rules)
def test_free_functions_are_reset_unless_policy_differs(
    buses: Buses, rule: policy.Rule
) -> None:
    reset = reset_addresses(scrub.plan(buses, rule))
    for bus in buses:
        is_held = bool(bus.functions[0].driver)
        for function in bus.functions:
            is_free = bool(bus.methods_of(function)) and not function.driver
            is_default = is_free or (bus.is_reset_together and not is_held)
            assert (function.address in reset) is (
                rule.scrub == policy.RESET or (not rule.scrub and is_default)
            )


@given(buses=buses)
def test_refused_functions_are_reset_with_their_bus(buses: Buses) -> None:
    due = scrub.plan(buses, policy.Rule(), is_refused=True)
    together = {
        action.function
        for action in due
        if isinstance(action, actions.ResetTogether)
    }
    assert together == {
        bus.functions[0].address
        for bus in buses
        if bus.is_bus_alone and not bus.functions[0].driver
    }


@given(buses=buses, rule=rules)
def test_a_card_that_nothing_can_reset_is_found(
    buses: Buses, rule: policy.Rule
) -> None:
    reset = reset_addresses(scrub.plan(buses, rule))
    bus = scrub.find_unresettable(buses, rule)
    if rule.scrub:
        assert bus is None
        return
    unreset = [
        b
        for b in buses
        if not b.functions[0].driver and b.functions[0].address not in reset
    ]
    assert bus == next(iter(unreset), None)


@given(buses=buses, rule=rules)
def test_the_command_comes_last_and_once(
    buses: Buses, rule: policy.Rule
) -> None:
    due = scrub.plan(buses, rule)
    commands = [
        action for action in due if isinstance(action, actions.RunScrub)
    ]
    if not rule.scrub_command or not buses:
        assert commands == []
        return
    assert commands == [due[-1]]
    assert commands[0].function == buses[0].functions[0].address


def test_a_variant_driver_of_vfio_stays_for_a_bus_reset() -> None:
    card = card_reset.BusFunctions(
        functions=(
            card_reset.ReleasedFunction(address="", methods=("bus",)),
            card_reset.ReleasedFunction(address=""),
        ),
        bridge="0000:00:01.0",
    )
    bus = _number(card, 0x71)
    first, second = bus.functions
    variant = dataclasses.replace(first, bound="nvgrace_gpu_vfio_pci")
    stub = dataclasses.replace(second, bound="pci-stub")
    due = scrub.plan(
        [dataclasses.replace(bus, functions=(variant, stub))], policy.Rule()
    )
    bind = actions.BindDriver(
        function=SOUND, driver="vfio-pci", before="pci-stub"
    )
    together = actions.ResetTogether(functions=(GPU, SOUND))
    assert due == (bind, together, bind.undo())


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
    assert claim.scrubbed == expected


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
