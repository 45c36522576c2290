# SPDX-License-Identifier: Apache-2.0
"""The functions of one guest determine how they can be reset."""

import pytest

from nova_accel.claims import card_reset

GPU, SOUND, USB = (f"0000:71:00.{number}" for number in range(3))
PORT = "0000:70:01.0"


def function(address: str, methods: str) -> card_reset.ReleasedFunction:
    return card_reset.ReleasedFunction(
        address=address, methods=tuple(methods.split())
    )


def bus(
    *methods: str, others: tuple[str, ...] = (), bridge: str = PORT
) -> card_reset.BusFunctions:
    """Return functions of one slot with these methods."""
    return card_reset.BusFunctions(
        functions=tuple(
            function(address, words)
            for address, words in zip((GPU, SOUND, USB), methods, strict=False)
        ),
        others=others,
        bridge=bridge,
    )


@pytest.mark.parametrize(
    ("methods", "phrase"),
    [
        (("bus", ""), f"bus of both functions through {PORT}"),
        (("bus", "pm"), f"bus of both functions through {PORT}"),
        (("bus", "", "pm"), f"bus of all 3 functions through {PORT}"),
        (("flr bus", ""), f"bus of both functions through {PORT}"),
        (("flr bus", "flr"), "flr"),
        (("pm bus", "pm"), "pm"),
        (("flr", "pm"), f"flr ({GPU}), pm ({SOUND})"),
        (("flr", ""), f"flr ({GPU}), none ({SOUND})"),
        # Linux before 5.15 names no method, and the first may be its bus.
        (("reset", ""), f"bus of both functions through {PORT}"),
        (("bus",), "bus"),
        (("flr bus",), "flr bus"),
        (("device_specific",), "device_specific"),
    ],
)
def test_functions_of_a_slot_are_reset(
    methods: tuple[str, ...], phrase: str
) -> None:
    card = bus(*methods)
    assert card.is_resettable and not card.is_unknown
    assert card_reset.describe([card]) == phrase


@pytest.mark.parametrize("methods", [("bus", ""), ("bus", "pm"), ("bus",)])
def test_a_bus_is_not_reset_below_another_guest(
    methods: tuple[str, ...],
) -> None:
    card = bus(*methods, others=("0000:71:00.7",))
    assert not card.is_resettable
    assert not card.is_reset_together
    assert "0000:71:00.7 on it would be reset too" in card.explain_none()


def test_a_root_bus_is_not_reset() -> None:
    card = bus("bus", "", bridge="")
    assert not card.is_resettable
    assert "root bus" in card.explain_none()


def test_a_card_without_methods_has_no_reset() -> None:
    card = bus("", "")
    assert not card.is_resettable and not card.is_unknown
    assert card_reset.find_unresettable([bus("flr"), card]) is card
    assert card.describe() == "none: the kernel knows no way to reset it"


def test_disabled_methods_are_named() -> None:
    function = card_reset.ReleasedFunction(address=GPU, is_disabled=True)
    card = card_reset.BusFunctions(functions=(function,))
    assert "write default to reset_method of" in card.describe()


def test_what_was_not_recorded_is_unknown() -> None:
    function = card_reset.ReleasedFunction(address=GPU, is_known=False)
    card = card_reset.BusFunctions(functions=(function,))
    assert card.is_unknown
    assert card_reset.find_unresettable([card]) is None
    assert card.describe() == "unknown"


def test_two_buses_are_described_once_each() -> None:
    assert card_reset.describe([bus("flr"), bus("flr")]) == "flr"
    assert card_reset.describe([bus("flr"), bus("pm")]) == "flr; pm"


@pytest.mark.parametrize(
    ("methods", "reset", "rest"),
    [
        (("bus", ""), [GPU, SOUND], []),
        (("flr", ""), [GPU], [SOUND]),
        (("", ""), [], [GPU, SOUND]),
    ],
)
def test_functions_are_split_by_their_reset(
    methods: tuple[str, ...], reset: list[str], rest: list[str]
) -> None:
    resettable, others = bus(*methods).split()
    assert [f.address for f in resettable.functions] == reset
    assert [f.address for f in others] == rest
    assert not reset or resettable.split() == (resettable, ())
