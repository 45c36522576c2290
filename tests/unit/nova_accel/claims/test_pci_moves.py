# SPDX-License-Identifier: Apache-2.0
"""Sequential address changes have the effect of simultaneous ones."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.claims import migration
from tests.support import strategies

A, B, C, D = (f"0000:41:00.{n}" for n in (4, 5, 6, 7))


def replaced(guest: list[str], steps: dict[str, str]) -> list[str]:
    """Return a guest's addresses after Nova's replacing.

    As its ``_update_pci_dev_xml``: pair by pair, the first that matches,
    and an error where none does.
    """
    addresses = list(guest)
    for old, new in steps.items():
        addresses[addresses.index(old)] = new
    return addresses


@st.composite
def injections(draw: st.DrawFn) -> dict[str, str]:
    """Draw new addresses for old ones, from few: circles are common."""
    few = draw(
        st.lists(strategies.pci_addresses, min_size=2, max_size=6, unique=True)
    )
    old = draw(st.lists(st.sampled_from(few), unique=True))
    new = draw(st.permutations(few))
    return dict(zip(old, new, strict=False))


@given(injections(), st.randoms(use_true_random=False))
def test_one_after_another_is_all_at_once(
    pairs: dict[str, str], random: Random
) -> None:
    guest = list(pairs)
    random.shuffle(guest)
    steps = dict(migration.plan_steps(pairs))
    assert replaced(guest, steps) == [pairs[old] for old in guest]


@given(st.permutations([A, B, C, D]))
def test_any_permutation(new: list[str]) -> None:
    pairs = dict(zip([A, B, C, D], new, strict=True))
    assert replaced([A, B, C, D], dict(migration.plan_steps(pairs))) == new


def test_what_stays_needs_no_step() -> None:
    assert migration.plan_steps({A: A, B: C}) == {B: C}
    assert migration.plan_steps({}) == {}


def test_no_detour_without_a_circle() -> None:
    assert list(migration.plan_steps({A: B, B: C}).items()) == [(B, C), (A, B)]


def test_a_detour_over_an_address_that_no_host_has() -> None:
    steps = migration.plan_steps({A: B, B: A})
    assert list(steps.items()) == [
        (A, "ffff:ff:1f.7"),
        (B, A),
        ("ffff:ff:1f.7", B),
    ]


def test_a_detour_round_one_that_has_it() -> None:
    last = "ffff:ff:1f.7"
    pairs = {last: A, A: last}
    assert replaced([last, A], dict(migration.plan_steps(pairs))) == [A, last]
    assert "ffff:ff:1f.6" in migration.plan_steps(pairs)


def test_two_devices_can_not_become_one() -> None:
    with pytest.raises(ValueError, match="one address"):
        migration.plan_steps({A: C, B: C})
