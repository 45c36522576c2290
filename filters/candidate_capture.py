# SPDX-License-Identifier: Apache-2.0
"""Seam into nova-scheduler: request filters, and answers of Placement.

Nova offers neither: its list of request filters is appended to, and
``SchedulerReportClient.get_allocation_candidates`` is wrapped. Its summaries
have capacity, usage, traits and parents of each provider of each candidate's
tree, but Nova gives filters and weighers the candidates only.

A request filter of this module runs before Nova's query, in the same thread
and with the same context. So the answer is tied to the RequestSpec, and freed
with it. Both with eventlet and with native threads, ``threading.local`` is
of one request at a time.
"""

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import nova.conf
from nova import exception
from nova.scheduler import request_filter
from nova.scheduler.client import report
from oslo_log import log as logging

LOG = logging.getLogger(__name__)
_METHOD = "get_allocation_candidates"
#: Parameters of the wrapped method, the same in Nova 31 to 34.
PARAMETERS = ("self", "context", "resources")

#: ``provider_summaries`` of Placement's allocation candidates, by uuid.
Summaries = Mapping[str, Any]
RequestFilter = Callable[[Any, Any], bool]
#: Takes context and RequestSpec of a request without candidates; returns the
#: reason, empty if none is known.
Explain = Callable[[Any, Any], str]

_explainers: list[Explain] = []
_local = threading.local()
_lock = threading.Lock()
_answers: weakref.WeakKeyDictionary[object, Summaries] = (
    weakref.WeakKeyDictionary()
)


def install(
    filters: Iterable[RequestFilter] = (), explain: Explain | None = None
) -> None:
    """Capture Nova's answers, and add request filters, each once.

    Nova reads its list at each request, and runs the filters in order.
    Without a method that has the known parameters nothing is captured.

    :param filters: request filters to add before the one of this module.
    :param explain: its reason ends a request without candidates.
    """
    if explain is not None:
        _explainers[:] = [explain]
    installed = {
        (f.__module__, f.__name__) for f in request_filter.ALL_REQUEST_FILTERS
    }
    for added in (*filters, tie_answer):
        if (added.__module__, added.__name__) not in installed:
            request_filter.ALL_REQUEST_FILTERS.append(added)
    stock = getattr(report.SchedulerReportClient, _METHOD, None)
    if find_difference(stock):
        LOG.info(
            "%s; accelerators are read from Placement with each request",
            find_difference(stock),
        )
    elif not hasattr(stock, "captures"):
        setattr(report.SchedulerReportClient, _METHOD, _wrap(stock))


def find_difference(method: Any) -> str:
    """Return why a method can't be wrapped, empty if it can.

    :param method: ``SchedulerReportClient.get_allocation_candidates``.
    """
    name = f"nova.scheduler.client.report.SchedulerReportClient.{_METHOD}"
    if not callable(method):
        return f"{name} does not exist"
    parameters = tuple(inspect.signature(method).parameters)
    if parameters != PARAMETERS:
        return f"{name} takes ({', '.join(parameters)})"
    return ""


def tie_answer(ctxt: Any, spec: Any) -> bool:
    """Tie Nova's next answer in this thread to a RequestSpec.

    A request filter.

    :returns: False: the request is not changed.
    """
    with _lock:
        _answers.pop(spec, None)
    _local.context, _local.spec = weakref.ref(ctxt), weakref.ref(spec)
    return False


def find_summaries(spec: object) -> Summaries | None:
    """Return the summaries of a request's candidates, None without them."""
    with _lock:
        return _answers.get(spec)


def store(spec: object, summaries: Summaries) -> None:
    """Store an answer for a request.

    Of a guest with pinned CPUs Nova merges two.
    """
    with _lock:
        stored = _answers.get(spec)
        _answers[spec] = {**stored, **summaries} if stored else summaries


def _wrap(stock: Any) -> Any:
    @functools.wraps(stock)
    def get_allocation_candidates(
        self: Any, context: Any, resources: Any
    ) -> Any:
        answer = stock(self, context, resources)
        spec = _find_spec(context)
        if spec is None or not answer:
            return answer
        if answer[1]:
            store(spec, answer[1])
        elif _is_last(spec, resources):
            # Of a request with an unknown name all are None.
            _refuse(context, spec)
        return answer

    get_allocation_candidates.captures = True  # type: ignore[attr-defined]
    return get_allocation_candidates


def _find_spec(context: Any) -> Any:
    """Return the request of this thread, None for another query."""
    tied = getattr(_local, "context", None)
    return _local.spec() if tied and tied() is context else None


def _is_last(spec: Any, resources: Any) -> bool:
    """Return whether Nova gives up a request after an empty answer.

    For a guest with pinned CPUs it asks again, for CPUs that are not.
    """
    return find_summaries(spec) is None and (
        not getattr(resources, "cpu_pinning_requested", False)
        or nova.conf.CONF.workarounds.disable_fallback_pcpu_query
    )


def _refuse(context: Any, spec: Any) -> None:
    """End a request without candidates, if there is a reason.

    :raises nova.exception.NoValidHost: as Nova does, but with the reason.
    """
    for explain in _explainers:
        try:
            reason = explain(context, spec)
        except Exception:
            LOG.exception("The reason of a refusal was not found")
            continue
        if reason:
            raise exception.NoValidHost(reason=reason)
