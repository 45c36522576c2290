# SPDX-License-Identifier: Apache-2.0
"""A late release does not harm the new consumer of a slot."""

from pathlib import Path

import pytest

from tests.lab import fakehost
from tests.support.hosts import domains, simulated_scrub
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
def test_a_late_release_changes_nothing(
    kernel: fakehost.Controller,
    tmp_path: Path,
    card: str,
    function: str,
    functions: set[str],
    is_first: bool,
) -> None:
    """The late server's move failed for ever, and its domain still exists."""
    before = started(kernel, tmp_path)
    shared = slot(before, card, function)
    claim = give(before, shared, B)
    libvirt = domains.SimulatedDomains()
    again = started(kernel, tmp_path, domains=libvirt)
    for consumer in (A, B) if is_first else (B, A):
        again.restore(consumer, (shared,))
    used = connection.HostdevUse(functions=frozenset(functions))
    libvirt.set_use(used)

    written = len(kernel.writes())
    again.release(A, (shared,), stopped, domain=used)
    assert kernel.writes()[written:] == []
    assert again.claims() == (claim,)
    assert fault(again, card) == ""
    again.clean_up()
    assert not reserved(again, card)

    libvirt.set_use(connection.HostdevUse())
    again.release(B, (shared,), stopped, domain=used)
    assert set(resets(kernel)) == functions
    assert again.claims() == ()
