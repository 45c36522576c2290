# SPDX-License-Identifier: Apache-2.0
"""A slot that a server had once, and that somebody else has by now."""

from pathlib import Path

import pytest

from tests.lab import fakehost
from tests.support.hosts import simulated_scrub
from tests.support.hosts.simulated import A, B, stopped
from tests.support.hosts.simulated_scrub import (
    FLEX,
    FLEX_VF,
    GPU,
    SOUND,
    fault,
    give,
    reserved,
    resets,
    slot,
    started,
)
from virt_hooks.guest import connection

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC
PLACES = [(GPU, GPU, {GPU, SOUND}), (FLEX, FLEX_VF, {FLEX_VF})]


@pytest.mark.parametrize(("card", "function", "functions"), PLACES)
@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_left_takes_nothing_from_it(
    kernel: fakehost.Controller,
    tmp_path: Path,
    card: str,
    function: str,
    functions: set[str],
    is_first: bool,
) -> None:
    """Its move failed and is listed for ever, its domain is there still."""
    before = started(kernel, tmp_path)
    one = slot(before, card, function)
    claim = give(before, one, B)
    again = started(kernel, tmp_path)
    for consumer in (A, B) if is_first else (B, A):
        again.recall(consumer, (one,))
    used = connection.HostdevUse(functions=frozenset(functions))
    again.read_use = again.read_running = lambda: used

    written = len(kernel.writes())
    again.release(A, (one,), stopped, had=used)
    assert kernel.writes()[written:] == []
    assert again.claims() == (claim,)
    assert fault(again, card) == ""
    again.tidy_now()
    assert not reserved(again, card)

    again.read_use = again.read_running = connection.HostdevUse
    again.release(B, (one,), stopped, had=used)
    assert set(resets(kernel)) == functions
    assert again.claims() == ()
