# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter: filter of nova-scheduler for allocation candidates.

In nova.conf of nova-scheduler::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = filters.accelerator_filter.AcceleratorFilter
    enabled_filters = <the filters in use>,AcceleratorFilter

AcceleratorFilter must be the last one: Nova claims the first candidate of the
list that the last filter returns.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import nova.conf
from nova import exception
from nova.scheduler import filters as host_filters
from nova.scheduler import request_filter, utils
from oslo_log import log as logging

from filters import (
    attached_profiles,
    candidate_capture,
    moved_server,
    native_flavors,
    profile_order,
)
from filters.fit import (
    candidate_fit,
    device_shape,
    no_candidates,
    preferred_traits,
    provider_facts,
    refusal_cache,
    request_mix,
    request_state,
    scores,
)
from filters.fit.numa_cells import build_cell_reader, has_pci_devices
from filters.placement import provider_names, queries
from filters.placement.report_client import placement_getter
from filters.request import NO_ACCELERATORS, AcceleratorRequest, parse_request
from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.config import logs, top_packages
from nova_accel.geometry.scheduling import usable_share, vgpu_geometry
from nova_accel.model import flavors
from placement_sync.client.provider_records import Get

LOG = logging.getLogger(__name__)
# Reasons of one host in one log line: a host has fewer cards.
_MAX_REASONS = 24
# Hosts whose cards get their names in the log, in one query each.
_MAX_NAMED = 8
# Cards whose allocations are read for one server, in one query each: half a
# second at 15 ms.
_MAX_ALLOCATIONS = 32
_WEIGHER = "filters.accelerator_weigher.AcceleratorWeigher"


def parse_spec(spec: Any) -> AcceleratorRequest:
    """Return the accelerator groups of a RequestSpec.

    They are those of its flavor, and of the profiles attached to it.

    :raises MalformedError: an extra spec has a value that is not allowed.
    """
    request = NO_ACCELERATORS
    if "extra_specs" in spec.flavor:
        request = parse_request(spec.flavor.extra_specs)
    attached = attached_profiles.list_groups(spec)
    if not attached:
        return request
    return dataclasses.replace(request, groups=(*request.groups, *attached))


@request_filter.trace_request_filter
def refuse_malformed_request(ctxt: Any, spec: Any) -> bool:
    """Refuse a request with a value that is not allowed.

    :returns: whether the request needs accelerators.
    :raises nova.exception.RequestFilterFailed: an extra spec has such a
        value. The reason becomes the server's fault.
    """
    try:
        return bool(parse_spec(spec).groups)
    except errors.MalformedError as error:
        raise exception.RequestFilterFailed(reason=str(error)) from error


def explain_refusal(ctxt: Any, spec: Any) -> str:
    """Return why Placement has no candidate for a request.

    Empty if no group of the flavor is the reason, or if it is not known.
    The text, without names of hosts, becomes the server's fault; the log has
    the names.
    """
    request = parse_spec(spec)
    if not request.groups:
        return ""
    try:
        refusal = refusals().find(placement_getter(ctxt.global_id), request)
    except errors.ServiceError as error:
        logs.warning(LOG, "No reason for a refusal was found: %s", error)
        return ""
    if refusal is None:
        return ""
    LOG.info(
        "No host can serve accelerator group '%(suffix)s' (%(group)s)"
        " of server %(server)s: %(refusal)s",
        {
            "suffix": refusal.group.suffix,
            "group": refusal.group,
            "server": _server(spec),
            "refusal": refusal,
        },
    )
    return str(exception.RequestFilterFailed(reason=refusal.fault))


@functools.cache
def refusals() -> refusal_cache.RefusalCache:
    """Return the reasons that all requests share."""
    return refusal_cache.RefusalCache()


class AcceleratorFilter(host_filters.BaseHostFilter):
    """Rejects and orders allocation candidates by their accelerators.

    A host passes if a candidate remains. Requests without accelerators pass
    unchanged, before any query.

    :param get: sends queries to Placement, by default with Nova's client.
    """

    # A rebuild keeps its devices and comes without candidates.
    RUN_ON_REBUILD = False

    def __init__(self, get: Get | None = None) -> None:
        """Read the options, and install the request filters.

        :raises ConfigurationError: a line of ``native_flavors`` is not
            valid.
        """
        super().__init__()
        self._get = get or placement_getter()
        self._states = request_state.shared()
        self._names = provider_names.ProviderNames(self._get)
        self._geometry = vgpu_geometry.VgpuGeometry(loader.load())
        self._has_weigher = (
            _WEIGHER in nova.conf.CONF.filter_scheduler.weight_classes
        )
        native_flavors.check_settings()
        preferred_traits.load()
        candidate_capture.install(
            (
                native_flavors.serve_native_flavors,
                attached_profiles.request_attached_profiles,
                refuse_malformed_request,
            ),
            explain_refusal,
        )
        profile_order.install()
        for package in top_packages.find_foreign():
            LOG.warning("%s", package)

    def filter_all(self, hosts: Iterable[Any], spec: Any) -> Iterable[Any]:
        """Return the hosts that pass, their candidates pruned and ordered.

        :param hosts: nova.scheduler.host_manager.HostState objects.
        :param spec: the nova.objects.RequestSpec.
        """
        if utils.request_is_rebuild(spec):
            return hosts
        request = parse_spec(spec)
        if not request.groups:
            return hosts
        hosts = list(hosts)
        traits = preferred_traits.read(spec._context, request)
        request = dataclasses.replace(request, preferred_traits=traits)
        state = self._states.recall(spec, request)
        is_repeat = False
        if not any(host.allocation_candidates for host in hosts):
            # Nova did not query Placement, or has no host left.
            return [host for host in hosts if host.uuid not in state.hosts]
        try:
            is_repeat = state.begin(self._get, _server(spec))
        except errors.ServiceError as problem:
            _warn_unread(problem)
        if not is_repeat:
            request_mix.shared().add(
                usable_share.build_shape(
                    *scores.read_size(spec), request.groups
                )
            )
        if request.policy.numa is flavors.NumaPolicy.REQUIRED:
            for host in hosts:
                _restore_candidates(host, spec, state)
        changed = state.list_changed(hosts)
        selection = _Selection(
            request=request,
            spec=spec,
            state=state,
            geometry=self._geometry,
            shape=moved_server.read_shape(spec, request.classes, self._get),
        )
        selection.read(changed, self._names)
        refused = {id(h) for h in changed if not selection.prune(h)}
        passed = [host for host in hosts if id(host) not in refused]
        if not is_repeat:
            passed = self._confirm(passed, selection)
        self._log_refusals(hosts, passed, state, is_repeat=is_repeat)
        state.offer(passed)
        return passed

    def host_passes(self, host_state: Any, spec: Any) -> bool:
        """Return whether one host passes; see filter_all."""
        return bool(list(self.filter_all([host_state], spec)))

    def _confirm(
        self, passed: list[Any], selection: "_Selection"
    ) -> list[Any]:
        """Read allocations of ambiguous cards of the first hosts.

        Only if no host is sure, which the weigher prefers, and until one
        is.

        :returns: the hosts that still pass.
        """
        doubtful = selection.state.doubtful
        if self._has_weigher and any(h.uuid not in doubtful for h in passed):
            return passed
        remaining: list[Any] = []
        reads, is_reading = 0, True
        for host in passed:
            is_passing = True
            while is_reading and is_passing:
                uuid = selection.find_ambiguous(host)
                if not uuid:
                    break
                try:
                    is_passing = selection.confirm(self._get, host, uuid)
                except errors.ServiceError as problem:
                    _warn_unread(problem)
                    is_reading = False
                reads += 1
                is_reading = is_reading and reads < _MAX_ALLOCATIONS
            if is_passing:
                remaining.append(host)
                is_sure = host.uuid not in doubtful
                is_reading = is_reading and not (self._has_weigher and is_sure)
        return remaining

    def _log_refusals(
        self,
        hosts: Sequence[Any],
        passed: Sequence[Any],
        state: request_state.RequestState,
        *,
        is_repeat: bool,
    ) -> None:
        """Log each refused host, with its reasons.

        Names of cards are read for some hosts, if no host passes.
        """
        if len(passed) == len(hosts):
            return
        passing = {id(host) for host in passed}
        refused = [host for host in hosts if id(host) not in passing]
        named: dict[str, str] = {}
        for host in [] if passing or is_repeat else refused[:_MAX_NAMED]:
            named |= self._names.find(
                (
                    provider.uuid
                    for rejection in state.hosts[host.uuid].rejections.values()
                    for provider in rejection.providers
                ),
                host.uuid,
            )
        for host in refused:
            reasons = state.hosts[host.uuid].rejections.values()
            lines = no_candidates.limit_lines(
                (str(reason.with_names(named)) for reason in reasons),
                _MAX_REASONS,
            )
            # A search for alternates does not leave a server without host.
            LOG.log(
                logging.DEBUG if is_repeat else logging.INFO,
                "AcceleratorFilter refuses host %(host)s: %(reasons)s",
                {"host": host.host, "reasons": "; ".join(lines)},
            )


@dataclasses.dataclass(kw_only=True)
class _Selection:
    """Selection of the candidates of one server.

    ``shape`` is that of its present devices if candidates with the same one
    come first, None for no preference.
    """

    request: AcceleratorRequest
    spec: Any
    state: request_state.RequestState
    geometry: vgpu_geometry.VgpuGeometry
    shape: device_shape.Shape | None = None
    ranks: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def read(
        self, hosts: Iterable[Any], names: provider_names.ProviderNames
    ) -> None:
        """Collect the facts of hosts that have changed.

        NVLinks need the names of the providers.
        """
        uuids = provider_facts.list_providers(
            self.request.classes,
            itertools.chain.from_iterable(
                host.allocation_candidates or () for host in hosts
            ),
        )
        facts = self.state.find_all(uuids)
        if self.request.policy.locality is flavors.Locality.NVLINK:
            for uuid, name in names.find(facts).items():
                facts[uuid] = dataclasses.replace(facts[uuid], name=name)
        self.state.facts |= facts
        self.state.ambiguous -= facts.keys()
        self.state.ambiguous |= candidate_fit.find_ambiguous(
            self.request, facts.values(), self.geometry.states
        )

    def prune(self, host: Any) -> bool:
        """Prune and order a host's candidates; return whether one remains.

        A host without candidates passes: Nova did not query Placement.
        """
        if not host.allocation_candidates:
            return host.uuid not in self.state.hosts
        fitting, rejections = candidate_fit.select(
            self.request,
            host.allocation_candidates,
            candidate_fit.HostFacts(
                shares=request_mix.shared_shares(),
                facts=self.state.facts,
                geometry=self.geometry,
                cells_of=_find_cell_reader(host, self.spec, self.request),
                ranks=self.ranks,
            ),
        )
        filtered = self.state.hosts.setdefault(
            host.uuid, request_state.FilteredHost()
        )
        filtered.rejections.update(rejections)
        if self.request.policy.numa is flavors.NumaPolicy.REQUIRED:
            fitting_ids = set(map(id, fitting))
            filtered.pruned = [
                *filtered.pruned,
                *(
                    candidate
                    for candidate in host.allocation_candidates
                    if id(candidate) not in fitting_ids
                ),
            ]
        if self.shape is not None:
            fitting.sort(key=self._has_other_shape)
        host.allocation_candidates = fitting
        if self.find_ambiguous(host):
            self.state.doubtful.add(host.uuid)
        else:
            self.state.doubtful.discard(host.uuid)
        return bool(fitting)

    def _has_other_shape(self, candidate: provider_facts.Candidate) -> bool:
        shape = device_shape.of_candidate(
            candidate, self.state.facts, self.request.classes
        )
        return shape != self.shape

    def find_ambiguous(self, host: Any) -> str:
        """Return an ambiguous card of a host's first candidate, or ""."""
        return next(
            (
                uuid
                for candidate in host.allocation_candidates[:1]
                for uuid in candidate["allocations"]
                if uuid in self.state.ambiguous
            ),
            "",
        )

    def confirm(self, get: Get, host: Any, uuid: str) -> bool:
        """Read the allocations of a card, and prune its host again.

        :raises ServiceError: Placement did not respond.
        """
        provider = queries.fetch_allocations(get, self.state.facts[uuid])
        self.state.replace(provider)
        self.state.facts[uuid] = provider
        self.state.ambiguous.discard(uuid)
        self.state.mark_changed(host)
        return self.prune(host)


def _restore_candidates(
    host: Any, spec: Any, state: request_state.RequestState
) -> None:
    """Restore candidates that were pruned for the cells of another server.

    They may suit this one, which may run on other NUMA cells.
    """
    filtered = state.hosts.get(host.uuid)
    if filtered is None or not filtered.pruned:
        return
    host.allocation_candidates = [
        *host.allocation_candidates,
        *(
            candidate
            for candidate in filtered.pruned
            if has_pci_devices(host, spec, candidate)
        ),
    ]
    filtered.pruned = ()


def _find_cell_reader(
    host: Any, spec: Any, request: AcceleratorRequest
) -> candidate_fit.CellsOf | None:
    """Return the reader of a host's cells, None if the policy needs none."""
    policy = request.policy.numa
    candidates = host.allocation_candidates
    if policy is flavors.NumaPolicy.NONE or (
        policy is flavors.NumaPolicy.PREFERRED and len(candidates) == 1
    ):
        return None
    return build_cell_reader(host, spec)


def _warn_unread(problem: errors.ServiceError) -> None:
    LOG.warning(
        "Could not read provider data from Placement: %s; scheduling goes on"
        " without them; see Placement's log",
        problem,
    )


def _server(spec: Any) -> str:
    return str(spec.instance_uuid) if "instance_uuid" in spec else ""
