# SPDX-License-Identifier: Apache-2.0
"""Calls that Placement refuses are tried twice."""

from nova_accel import errors
from placement_sync.client import calls
from placement_sync.sync import refusals

CREATE = calls.CreateProvider(uuid="u", name="n", parent="p")
AMOUNTS = calls.SetInventories(uuid="u", name="n", inventories={})
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


def test_names_have_no_provider() -> None:
    for call, provider in ((calls.CreateTrait(name="T"), ""), (CREATE, "u")):
        refusal = refusals.RefusedCall(call=call, error=REFUSED)
        assert refusal.provider == provider
