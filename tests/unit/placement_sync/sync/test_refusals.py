# SPDX-License-Identifier: Apache-2.0
"""Calls that Placement refuses are tried twice, and may become moves."""

import pytest

from nova_accel import errors
from nova_accel.model import providers
from placement_sync.client import calls
from placement_sync.sync import refusals

OWN, OTHER = (providers.ProviderRoot(name="n", uuid=each) for each in "uv")
CREATE = calls.CreateProvider(uuid="u", name="n", parent="p")
AMOUNTS = calls.SetInventories(uuid="u", name="n", inventories={})
TAKEN = errors.ServiceError("POST", "/x", 409, "no", refusals.DUPLICATE)
REFUSED = errors.ServiceError("PUT", "/x", 400, "no")


def test_a_refused_call_is_tried_twice() -> None:
    refused = refusals.RefusedCalls()
    are_final = []
    for _ in range(2):
        refused.begin_attempt()
        refused.add(AMOUNTS, REFUSED)
        are_final.append(refused.is_final)
    assert are_final == [False, True]
    assert refused.is_given_up(AMOUNTS)
    [problem] = refused.problems()
    assert problem.where == "n"


def test_a_call_that_may_succeed_later_is_not_given_up() -> None:
    refused = refusals.RefusedCalls()
    later = errors.ServiceError("PUT", "/x", 503, "busy")
    concurrent = errors.ServiceError("PUT", "/x", 409, "", refusals.CONCURRENT)
    for _ in range(2):
        refused.begin_attempt()
        refused.add(AMOUNTS, later)
        refused.add(CREATE, concurrent)
    assert not refused.is_given_up(AMOUNTS)
    assert not refused.is_given_up(CREATE)


def test_a_changed_state_is_read_by_another_attempt() -> None:
    refused = refusals.RefusedCalls()
    assert refused.is_final
    refused.request_attempt()
    assert not refused.is_final


def test_names_have_no_provider() -> None:
    for call, provider in ((calls.CreateTrait(name="T"), ""), (CREATE, "u")):
        refusal = refusals.RefusedCall(call=call, error=REFUSED)
        assert refusal.provider == provider


@pytest.mark.parametrize("owner", [None, OWN, OTHER])
@pytest.mark.parametrize("error", [TAKEN, REFUSED])
@pytest.mark.parametrize("call", [CREATE, AMOUNTS])
def test_a_provider_that_is_elsewhere_is_moved_after_two_refusals(
    call: calls.Call,
    error: errors.ServiceError,
    owner: providers.ProviderRoot | None,
) -> None:
    """Unless another provider has its name."""
    refused = refusals.RefusedCalls()
    moves = []
    for _ in range(2):
        refused.begin_attempt()
        moves.append(refused.plan_move(call, error, lambda _: owner))
        refused.add(call, error)
    is_moved = call is CREATE and error is TAKEN and owner is not OTHER
    move = calls.UpdateProvider(uuid="u", name="n", parent="p")
    assert moves == [None, move if is_moved else None]
