# SPDX-License-Identifier: Apache-2.0
"""Nova's answers are tied to their requests, and to no other."""

import gc
import threading
from typing import Any

import pytest

pytest.importorskip("nova", reason="the scheduler's seam needs Nova")

from nova import context, objects
from nova.scheduler import request_filter
from nova.scheduler.client import report

from filters import candidate_capture

objects.register_all()
ANSWER: Any = ([{"allocations": {}}], {"card": {"traits": []}}, "1.36")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Nova's report client, whose query has a fixed answer."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])

    def get_allocation_candidates(
        self: Any, context: Any, resources: Any
    ) -> Any:
        return resources

    monkeypatch.setattr(
        report.SchedulerReportClient,
        "get_allocation_candidates",
        get_allocation_candidates,
    )
    candidate_capture.install()
    return object.__new__(report.SchedulerReportClient)


def make_request() -> tuple[Any, Any]:
    """Return a context and a RequestSpec, as Nova's filters get them."""
    return context.get_admin_context(), objects.RequestSpec()


def test_an_answer_belongs_to_the_request_before_it(client: Any) -> None:
    ctxt, spec = make_request()
    candidate_capture.tie_answer(ctxt, spec)

    assert client.get_allocation_candidates(ctxt, ANSWER) is ANSWER

    assert candidate_capture.find_summaries(spec) == ANSWER[1]
    candidate_capture.tie_answer(ctxt, spec)
    assert candidate_capture.find_summaries(spec) is None


def test_two_answers_of_a_request_are_merged(client: Any) -> None:
    """Nova asks twice for a guest with pinned CPUs."""
    ctxt, spec = make_request()
    candidate_capture.tie_answer(ctxt, spec)
    others: list[Any] = [([], {}, "1.36"), ([], {"other": 1}, "1.36")]
    for answer in (ANSWER, *others):
        client.get_allocation_candidates(ctxt, answer)

    summaries = candidate_capture.find_summaries(spec)
    assert summaries == {**ANSWER[1], "other": 1}


@pytest.mark.parametrize("answer", [None, (None, None, None), ([], {}, "")])
def test_a_failed_or_empty_query_is_not_captured(
    client: Any, answer: Any
) -> None:
    ctxt, spec = make_request()
    candidate_capture.tie_answer(ctxt, spec)

    assert client.get_allocation_candidates(ctxt, answer) is answer
    assert candidate_capture.find_summaries(spec) is None


def test_a_query_with_another_context_is_not_captured(client: Any) -> None:
    ctxt, spec = make_request()
    candidate_capture.tie_answer(ctxt, spec)

    client.get_allocation_candidates(context.get_admin_context(), ANSWER)

    assert candidate_capture.find_summaries(spec) is None


def test_threads_have_requests_of_their_own(client: Any) -> None:
    requests = [make_request() for _ in range(8)]
    are_tied = threading.Barrier(len(requests), timeout=20)

    def schedule(number: int) -> None:
        ctxt, spec = requests[number]
        candidate_capture.tie_answer(ctxt, spec)
        are_tied.wait()
        client.get_allocation_candidates(
            ctxt, ([{}], {str(number): 1}, "1.36")
        )

    threads = [
        threading.Thread(target=schedule, args=(number,))
        for number in range(len(requests))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [
        candidate_capture.find_summaries(spec) for _, spec in requests
    ] == [{str(number): 1} for number in range(len(requests))]


def test_an_answer_is_freed_with_its_request(client: Any) -> None:
    # Requests of other tests may not have been collected yet.
    gc.collect()
    before = len(candidate_capture._answers)
    ctxt, spec = make_request()
    candidate_capture.tie_answer(ctxt, spec)
    client.get_allocation_candidates(ctxt, ANSWER)
    assert len(candidate_capture._answers) == before + 1

    del spec
    gc.collect()

    assert len(candidate_capture._answers) == before
    client.get_allocation_candidates(ctxt, ANSWER)
    assert len(candidate_capture._answers) == before


def test_the_method_is_wrapped_once(client: Any) -> None:
    wrapped = report.SchedulerReportClient.get_allocation_candidates
    candidate_capture.install()

    assert report.SchedulerReportClient.get_allocation_candidates is wrapped
    assert request_filter.ALL_REQUEST_FILTERS == [candidate_capture.tie_answer]


def test_a_method_with_other_parameters_is_not_wrapped(
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def changed(self: Any, context: Any, resources: Any, limit: Any) -> None:
        """Take one parameter more."""

    monkeypatch.setattr(
        report.SchedulerReportClient, "get_allocation_candidates", changed
    )
    with caplog.at_level("INFO"):
        candidate_capture.install()

    assert report.SchedulerReportClient.get_allocation_candidates is changed
    assert (
        "SchedulerReportClient.get_allocation_candidates takes (self, context,"
        " resources, limit); accelerators are read" in caplog.text
    )
    assert "does not exist" in candidate_capture.find_difference(None)
