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
from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.scheduler import filters as host_filters
from nova.scheduler import request_filter, utils
from oslo_log import log as logging

from filters import attached_profiles, glance_images, native_flavors
from filters.fit import candidate_fit, fact_reader, no_candidates
from filters.fit.numa_cells import build_cell_reader, has_pci_devices
from filters.placement.report_client import placement_getter
from filters.request import NO_ACCELERATORS, AcceleratorRequest, parse_request
from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.config import logs, top_packages
from nova_accel.geometry import vgpu_geometry
from nova_accel.model import flavors
from placement_sync.client.provider_records import Get

LOG = logging.getLogger(__name__)
# Reasons of one host in one log line: a host has fewer cards.
_MAX_REASONS = 24


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
def refuse_hopeless_request(ctxt: Any, spec: Any) -> bool:
    """Refuse a request that no host can serve, with the reason.

    Runs before Nova's query to Placement, whose empty response has no
    reason.

    :returns: whether the request needs accelerators.
    :raises nova.exception.RequestFilterFailed: a group of the flavor has
        no candidate even if queried alone, or an extra spec has a value
        that is not allowed. The reason, without names of hosts, becomes the
        server's fault; the log has the names.
    """
    try:
        request = parse_spec(spec)
    except errors.MalformedError as error:
        raise exception.RequestFilterFailed(reason=str(error)) from error
    if not request.groups:
        return False
    try:
        refusal = no_candidates.find_refusal(
            placement_getter(ctxt.global_id), request
        )
    except errors.ServiceError as error:
        logs.warning(
            LOG, "Accelerators were not checked beforehand: %s", error
        )
        return True
    if refusal is not None:
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
        raise exception.RequestFilterFailed(reason=refusal.fault)
    return True


def install_request_filters() -> None:
    """Add our request filters to Nova's, once and in this order.

    Nova reads the list at each request. There is no other way to set the
    server's fault, or to request more than the flavor, from outside Nova.
    """
    installed = {
        (f.__module__, f.__name__) for f in request_filter.ALL_REQUEST_FILTERS
    }
    for added in (
        native_flavors.serve_native_flavors,
        attached_profiles.request_attached_profiles,
        refuse_hopeless_request,
    ):
        if (added.__module__, added.__name__) not in installed:
            request_filter.ALL_REQUEST_FILTERS.append(added)


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
        self._reader = fact_reader.FactReader(get or placement_getter())
        self._memories = fact_reader.RequestMemories()
        self._geometry = vgpu_geometry.VgpuGeometry(loader.load())
        native_flavors.check_settings()
        install_request_filters()
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
        traits = glance_images.shared().traits_by_group(spec._context, request)
        request = dataclasses.replace(request, preferred_traits=traits)
        memory = self._memories.recall(spec, request)
        for host in hosts:
            _restore_candidates(host, spec, memory)
        snapshot = self._reader.read_confirmed(
            memory,
            _server(spec),
            [host.allocation_candidates for host in hosts],
            self._geometry,
        )
        for problem in snapshot.problems:
            LOG.warning(
                "Could not read provider data from Placement: %s; scheduling"
                " goes on without them; see Placement's log",
                problem,
            )
        passed = [
            host for host in hosts if self._prune(host, spec, memory, snapshot)
        ]
        if not snapshot.is_repeat:
            memory.servers[_server(spec)].candidates = [
                candidate
                for host in passed
                for candidate in host.allocation_candidates
            ]
        return passed

    def host_passes(self, host_state: Any, spec: Any) -> bool:
        """Return whether one host passes; see filter_all."""
        return bool(list(self.filter_all([host_state], spec)))

    def _prune(
        self,
        host: Any,
        spec: Any,
        memory: fact_reader.RequestMemory,
        snapshot: fact_reader.FactSnapshot,
    ) -> bool:
        """Prune and order a host's candidates; return whether one remains.

        A host without candidates passes: Nova did not query Placement.
        """
        if not host.allocation_candidates:
            return True
        fitting, rejections = candidate_fit.select(
            memory.request,
            host.allocation_candidates,
            candidate_fit.HostFacts(
                facts=snapshot.facts,
                geometry=self._geometry,
                cells_of=_find_cell_reader(host, spec, memory.request),
            ),
        )
        fitting_ids = set(map(id, fitting))
        filtered = memory.hosts.setdefault(
            host.uuid, fact_reader.FilteredHost()
        )
        filtered.pruned = [
            candidate
            for candidate in host.allocation_candidates
            if id(candidate) not in fitting_ids
        ]
        host.allocation_candidates = fitting
        filtered.rejections.update(rejections)
        if not fitting:
            lines = no_candidates.limit_lines(
                map(str, filtered.rejections.values()), _MAX_REASONS
            )
            # A search for alternates does not leave a server without host.
            LOG.log(
                logging.DEBUG if snapshot.is_repeat else logging.INFO,
                "AcceleratorFilter refuses host %(host)s: %(reasons)s",
                {"host": host.host, "reasons": "; ".join(lines)},
            )
        return bool(fitting)


def _restore_candidates(
    host: Any, spec: Any, memory: fact_reader.RequestMemory
) -> None:
    """Restore candidates that were pruned for another server.

    They may suit this one, which may run on other NUMA cells.
    """
    filtered = memory.hosts.get(host.uuid)
    if filtered is None:
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


def _server(spec: Any) -> str:
    return str(spec.instance_uuid) if "instance_uuid" in spec else ""
