# SPDX-License-Identifier: Apache-2.0
"""Calls that Placement refuses are tried twice."""

from nova_accel import errors
from nova_accel.model import providers
from placement_sync.client import calls
from placement_sync.sync import refusals
from tests.support import strategies

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


def test_calls_wait_for_a_stopped_provider() -> None:
    """Those on it and below it, and the deletes of providers above it."""
    parents = {"root": "", "card": "root", "region": "card", "other": "root"}
    nodes = tuple(
        providers.ProviderNode(
            uuid=uuid,
            name=uuid,
            parent=parent,
            inventories={},
            traits=frozenset(),
        )
        for uuid, parent in parents.items()
        if parent
    )
    nesting = refusals.Nesting(
        providers.ProviderTree(root=strategies.ROOT, nodes=nodes)
    )
    amounts = [
        calls.SetInventories(uuid=uuid, name="", inventories={})
        for uuid in parents
    ]
    deletes = [calls.DeleteProvider(uuid=uuid, name="") for uuid in parents]
    nesting.stop(calls.CreateTrait(name="card"))
    assert not any(map(nesting.is_stopped, amounts))
    assert not any(map(nesting.is_stopped, deletes))
    nesting.stop(amounts[1])
    assert [*map(nesting.is_stopped, amounts)] == [False, True, True, False]
    assert [*map(nesting.is_stopped, deletes)] == [True, True, True, False]
    assert not nesting.is_stopped(calls.CreateTrait(name="card"))
