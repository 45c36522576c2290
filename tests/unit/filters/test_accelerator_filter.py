# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter needs few queries, and tolerates a failed Placement."""

import copy
import gc
import logging
from typing import Any, NoReturn

import pytest

from filters import request
from nova_accel import errors
from nova_accel.model import names

pytest.importorskip("nova", reason="the scheduler's seam needs Nova")

from keystoneauth1 import exceptions as ks_exc
from nova import context, exception, objects
from nova.scheduler import host_manager, request_filter
from nova.scheduler.client import report
from oslo_utils.fixture import uuidsentinel as uuids

from filters import accelerator_filter, candidate_capture
from filters.fit import request_state
from filters.placement import report_client

objects.register_all()

MTTY = {
    "resources_A:CUSTOM_MDEV": "1",
    "trait_A:CUSTOM_MDEV_MTTY_2": "required",
}
CANDIDATE = {
    "allocations": {
        uuids.root: {"resources": {"VCPU": 1}},
        uuids.card: {"resources": {"CUSTOM_MDEV": 1}},
    },
    "mappings": {"": [uuids.root], "_A": [uuids.card]},
}


def spec(
    extra_specs: dict[str, str],
    instance: str = uuids.server1,
    hints: dict[str, list[str]] | None = None,
) -> Any:
    return objects.RequestSpec(
        context.get_admin_context(),
        flavor=objects.Flavor(extra_specs=extra_specs),
        instance_uuid=instance,
        scheduler_hints=hints or {},
    )


def host(name: str = "labvm", candidates: int = 1) -> Any:
    state = host_manager.HostState(name, name, uuids.cell)
    state.allocation_candidates = [
        copy.deepcopy(CANDIDATE) for _ in range(candidates)
    ]
    return state


def unreachable(path: str) -> NoReturn:
    raise errors.ServiceError("GET", path, None, "ConnectFailure")


class QuerySentError(AssertionError):
    pass


def forbidden(path: str) -> NoReturn:
    raise QuerySentError(path)


def no_catalog() -> NoReturn:
    raise RuntimeError("no catalog")


@pytest.fixture
def request_filters(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    installed = list(request_filter.ALL_REQUEST_FILTERS)
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", installed)
    return installed


@pytest.mark.parametrize(
    ("extra_specs", "hints"),
    [
        ({}, None),
        ({"hw:cpu_policy": "shared", "resources:VCPU": "1"}, None),
        (MTTY, {"_nova_check_type": ["rebuild"]}),
    ],
)
@pytest.mark.usefixtures("request_filters")
def test_requests_without_accelerators_pass_without_a_query(
    extra_specs: dict[str, str], hints: dict[str, list[str]] | None
) -> None:
    tested = accelerator_filter.AcceleratorFilter(forbidden)
    several = [host("a", 2), host("b", 0)]

    assert (
        tested.filter_all(several, spec(extra_specs, hints=hints)) is several
    )


SUMMARIES = {
    uuids.root: {
        "resources": {"VCPU": {"capacity": 4, "used": 0}},
        "traits": [],
        "parent_provider_uuid": None,
        "root_provider_uuid": uuids.root,
    },
    uuids.card: {
        "resources": {"CUSTOM_MDEV": {"capacity": 2, "used": 0}},
        "traits": [names.OWNER_TRAIT, "CUSTOM_MDEV_MTTY_2"],
        "parent_provider_uuid": uuids.root,
        "root_provider_uuid": uuids.root,
    },
}


@pytest.mark.usefixtures("request_filters")
def test_captured_candidates_need_no_query() -> None:
    """Each claim that Nova counts reduces the room for the next server."""
    tested = accelerator_filter.AcceleratorFilter(forbidden)
    labvm, request_spec = host(), spec(MTTY)
    candidate_capture.store(request_spec, SUMMARIES)

    assert tested.host_passes(labvm, request_spec)
    assert labvm.allocation_candidates == [CANDIDATE]
    # No claim yet: the search may be repeated for another server.
    for server in (uuids.server2, uuids.server3):
        request_spec.instance_uuid = server
        assert tested.host_passes(labvm, request_spec)
        labvm.num_instances += 1
    request_spec.instance_uuid = uuids.server4
    labvm.allocation_candidates = [CANDIDATE]
    with pytest.raises(QuerySentError):  # For the names in the log.
        tested.host_passes(labvm, request_spec)
    assert labvm.allocation_candidates == []


@pytest.mark.usefixtures("request_filters")
def test_without_a_captured_answer_each_server_has_one_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paths = []

    def get(path: str) -> Any:
        paths.append(path.partition("?")[0])
        return {"provider_summaries": SUMMARIES}

    tested = accelerator_filter.AcceleratorFilter(get)
    tested._states = request_state.RequestStates()
    request_spec = spec(MTTY)
    with caplog.at_level(logging.INFO):
        for server in (uuids.server1, uuids.server2):
            request_spec.instance_uuid = server
            assert tested.host_passes(host(), request_spec)

    assert paths == ["/allocation_candidates"] * 2
    assert caplog.text.count("candidates were not captured") == 1


@pytest.mark.usefixtures("request_filters")
def test_a_host_without_candidates_passes() -> None:
    tested = accelerator_filter.AcceleratorFilter(forbidden)

    assert tested.host_passes(host(candidates=0), spec(MTTY))


@pytest.mark.usefixtures("request_filters")
def test_all_hosts_pass_while_placement_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tested = accelerator_filter.AcceleratorFilter(unreachable)
    labvm, request_spec = host(candidates=2), spec(MTTY)
    before = list(labvm.allocation_candidates)

    with caplog.at_level(logging.WARNING):
        for server in (uuids.server1, uuids.server2):
            request_spec.instance_uuid = server
            assert list(tested.filter_all([labvm], request_spec)) == [labvm]

    assert labvm.allocation_candidates == before
    assert "ConnectFailure" in caplog.text
    assert "see Placement's log" in caplog.text


@pytest.mark.usefixtures("request_filters")
def test_all_hosts_pass_after_a_malformed_answer() -> None:
    tested = accelerator_filter.AcceleratorFilter(lambda path: {"x": path})
    labvm, request_spec = host(candidates=2), spec(MTTY)

    for server in (uuids.server1, uuids.server2):
        request_spec.instance_uuid = server
        assert list(tested.filter_all([labvm], request_spec)) == [labvm]


def test_a_state_is_deleted_with_its_request_spec() -> None:
    states = request_state.RequestStates()
    accelerators = request.parse_request(MTTY)
    first, second = spec(MTTY), spec(MTTY)

    state = states.recall(first, accelerators)
    assert states.recall(first, accelerators) is state
    assert states.recall(second, accelerators) is not state
    assert len(states) == 2
    candidate_capture.store(first, SUMMARIES)
    assert states.recall(first, accelerators) is not state

    del first, second
    gc.collect()
    assert len(states) == 0


def test_the_request_filters_are_added_once(
    request_filters: list[object],
) -> None:
    before = len(request_filters)

    accelerator_filter.AcceleratorFilter()
    accelerator_filter.AcceleratorFilter()

    assert len(request_filters) == before + 4
    assert request_filters[-1] is candidate_capture.tie_answer


def test_a_request_without_accelerators_needs_no_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "report_client_singleton", no_catalog)

    plain = spec({"resources:VCPU": "1"})
    ctxt = context.get_admin_context()
    assert not accelerator_filter.refuse_malformed_request(ctxt, plain)
    assert accelerator_filter.explain_refusal(ctxt, plain) == ""
    assert caplog.text == ""


def test_an_invalid_value_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "report_client_singleton", no_catalog)
    wrong = {**MTTY, "accelerator:packing": "typo"}

    with pytest.raises(
        exception.RequestFilterFailed, match="pack, spread, best_remaining"
    ):
        accelerator_filter.refuse_malformed_request(
            context.get_admin_context(), spec(wrong)
        )


def test_a_failed_search_for_a_reason_lets_nova_decide(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "report_client_singleton", no_catalog)
    accelerator_filter.refusals.cache_clear()

    reason = accelerator_filter.explain_refusal(
        context.get_admin_context(), spec(MTTY)
    )

    assert reason == ""
    assert "No reason for a refusal was found" in caplog.text
    assert "no catalog" in caplog.text


def test_any_error_of_novas_client_is_a_query_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "report_client_singleton", no_catalog)

    with pytest.raises(errors.ServiceError, match="no catalog"):
        report_client.placement_getter()("/resource_providers")


def test_credentials_in_an_error_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endpoint_override may carry a user and a password."""

    def unreachable() -> NoReturn:
        raise ks_exc.ConnectFailure("no way to http://who:secret@placement:1")

    monkeypatch.setattr(report, "report_client_singleton", unreachable)

    with pytest.raises(errors.ServiceError, match="//placement:1") as caught:
        report_client.placement_getter()("/resource_providers")
    assert "secret" not in str(caught.value)
