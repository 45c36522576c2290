# SPDX-License-Identifier: Apache-2.0
"""AcceleratorFilter, as nova-scheduler loads it.

In nova.conf of nova-scheduler::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = filters.accelerator_filter.AcceleratorFilter
    enabled_filters = <the filters in use>,AcceleratorFilter

AcceleratorFilter comes last: Nova claims the first candidate of the list
that the last filter leaves.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from nova import exception
from nova.scheduler import filters as host_filters
from nova.scheduler import request_filter, utils
from oslo_log import log as logging

from filters import glance_images, request
from filters.explain import no_candidates
from filters.fit import candidate_fit, fact_reader, vgpu_geometry
from filters.fit.numa_cells import is_left, reader_of_cells
from filters.placement.report_client import placement_getter
from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.model import flavors

LOG = logging.getLogger(__name__)
# Of one host in one line of the log: more than a host has cards.
_MAX_REASONS = 24


def wanted_by(spec: Any) -> request.AcceleratorRequest:
    """Return what a RequestSpec's flavor asks of accelerators.

    :raises MalformedError: an extra spec can't be used.
    """
    if "extra_specs" not in spec.flavor:
        return request.NOTHING
    return request.parse_request(spec.flavor.extra_specs)


@request_filter.trace_request_filter
def refuse_hopeless_request(ctxt: Any, spec: Any) -> bool:
    """Refuse a request that Placement can't serve on any host, with why.

    It runs before Nova asks Placement, whose empty answer has no reason.

    :returns: whether the request asks for accelerators.
    :raises nova.exception.RequestFilterFailed: a group of the flavor has
        no candidate even when asked for alone, or its extra specs can't be
        used. The reason, without names of hosts, becomes the server's
        fault; the log has the names.
    """
    try:
        wanted = wanted_by(spec)
    except errors.MalformedError as error:
        raise exception.RequestFilterFailed(reason=str(error)) from error
    if not wanted.groups:
        return False
    try:
        refusal = no_candidates.find_refusal(
            placement_getter(ctxt.global_id), wanted
        )
    except fact_reader.QueryError as error:
        LOG.warning("Accelerators were not checked beforehand: %s", error)
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


def install_request_filter() -> None:
    """Add refuse_hopeless_request to Nova's request filters, once.

    The list is read at every request; adding to it is the only way to
    reach the server's fault from outside Nova.
    """
    known = {
        (f.__module__, f.__name__) for f in request_filter.ALL_REQUEST_FILTERS
    }
    mine = refuse_hopeless_request
    if (mine.__module__, mine.__name__) not in known:
        request_filter.ALL_REQUEST_FILTERS.append(mine)


class AcceleratorFilter(host_filters.BaseHostFilter):
    """Keeps and orders the allocation candidates that fit accelerators.

    A host passes while one candidate is left. Requests without
    accelerators pass untouched, before anything is read.

    :param get: how to ask Placement, by default through Nova's client.
    """

    # A rebuild keeps its devices and comes without candidates.
    RUN_ON_REBUILD = False

    def __init__(self, get: fact_reader.Get | None = None) -> None:
        super().__init__()
        self._reader = fact_reader.FactReader(get or placement_getter())
        self._memories = fact_reader.RequestMemories()
        self._cards = vgpu_geometry.VgpuGeometry(loader.load())
        install_request_filter()

    def filter_all(self, hosts: Iterable[Any], spec: Any) -> Iterable[Any]:
        """Return the hosts that pass, their candidates pruned and ordered.

        :param hosts: nova.scheduler.host_manager.HostState objects.
        :param spec: the nova.objects.RequestSpec.
        """
        if utils.request_is_rebuild(spec):
            return hosts
        wanted = wanted_by(spec)
        if not wanted.groups:
            return hosts
        hosts = list(hosts)
        held = glance_images.shared().by_group(spec._context, wanted)
        wanted = dataclasses.replace(wanted, preferred=held)
        memory = self._memories.recall(spec, wanted)
        for host in hosts:
            # What does not suit one server may suit the next one, which
            # may run on other NUMA cells.
            host.allocation_candidates = [
                *host.allocation_candidates,
                *(
                    one
                    for one in memory.pruned.pop(host.uuid, ())
                    if is_left(host, spec, one)
                ),
            ]
        found = [host.allocation_candidates for host in hosts]
        look = self._reader.look_twice(
            memory, _server(spec), found, self._cards
        )
        for problem in look.problems:
            LOG.warning("AcceleratorFilter knows less: %s", problem)
        kept = [host for host in hosts if self._keep(host, spec, memory, look)]
        if not look.again:
            memory.passed[_server(spec)] = [
                one for host in kept for one in host.allocation_candidates
            ]
        return kept

    def host_passes(self, host_state: Any, spec: Any) -> bool:
        """Return whether one host passes; see filter_all."""
        return bool(list(self.filter_all([host_state], spec)))

    def _keep(
        self,
        host: Any,
        spec: Any,
        memory: fact_reader.RequestMemory,
        look: fact_reader.FactSnapshot,
    ) -> bool:
        """Prune and order a host's candidates; return whether one is left.

        A host that came without any (no Placement) is not ours to judge.
        """
        if not host.allocation_candidates:
            return True
        fits, lacks = candidate_fit.fitting(
            memory.wanted,
            host.allocation_candidates,
            candidate_fit.HostFacts(
                facts=look.facts,
                cards=self._cards,
                cells_of=_cells(host, spec, memory.wanted),
            ),
        )
        kept = {id(one) for one in fits}
        memory.pruned[host.uuid] = [
            one for one in host.allocation_candidates if id(one) not in kept
        ]
        host.allocation_candidates = fits
        every = memory.lacks.setdefault(host.uuid, {})
        every.update(lacks)
        if not fits:
            # No server goes without a host when alternates are looked for.
            lines = no_candidates.first(every.values(), _MAX_REASONS)
            LOG.log(
                logging.DEBUG if look.again else logging.INFO,
                "AcceleratorFilter refuses host %(host)s: %(lacks)s",
                {"host": host.host, "lacks": "; ".join(lines)},
            )
        return bool(fits)


def _cells(
    host: Any, spec: Any, wanted: request.AcceleratorRequest
) -> candidate_fit.CellsOf | None:
    """Return what tells a host's cells where the choice depends on them."""
    policy = wanted.placing.numa
    candidates = host.allocation_candidates
    if policy is flavors.NumaPolicy.NONE or (
        policy is flavors.NumaPolicy.PREFERRED and len(candidates) == 1
    ):
        return None
    return reader_of_cells(host, spec)


def _server(spec: Any) -> str:
    return str(spec.instance_uuid) if "instance_uuid" in spec else ""
