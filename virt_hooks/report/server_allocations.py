# SPDX-License-Identifier: Apache-2.0
"""Allocations in Placement, read and written through Nova's client.

The only reader of allocations in nova-compute. Each method raises
ServiceError if Placement can't be read, or refuses.

Nova's tracker reads those of a whole tree in each update, under the lock of
all claims: one request for each provider and for each of their consumers
(_update_to_placement). It uses them for a reshape, and with
``[pci]report_in_placement``; otherwise ``read_on_use`` saves the requests.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from nova import context as nova_context
from nova import utils
from nova.compute import resource_tracker
from oslo_log import log as logging

from nova_accel import errors
from placement_sync.client import nova_client, provider_records
from virt_hooks import nova_private
from virt_hooks.instance import ledger, nova_records

LOG = logging.getLogger(__name__)
_CONCURRENT = "placement.concurrent_update"
# How often allocations are written again after a generation conflict: as
# often as Nova's own client does (report.py, retries).
_ATTEMPTS = 4


class ServerAllocations:
    """Allocations of consumers; a server's slots are in Nova's tracker."""

    def __init__(self, virtapi: Any) -> None:
        self._virtapi = virtapi

    @property
    def client(self) -> Any:
        """Return Nova's client of Placement."""
        return self._virtapi.reportclient

    @property
    def tracker(self) -> Any:
        """Return Nova's resource tracker."""
        return nova_private.tracker_of(self._virtapi)

    # -- Placement ---------------------------------------------------------

    def get(self, context: Any = None) -> provider_records.Get:
        """Return a getter of Placement.

        :param context: Nova's request context, for Placement's log.
        """
        return self._open(context).fetch

    def _open(self, context: Any) -> nova_client.NovaClient:
        return nova_client.NovaClient(
            lambda: self.client, context and context.global_id
        )

    def read(
        self, consumer: str, context: Any = None
    ) -> provider_records.Amounts:
        """Return what a consumer allocates: amounts by provider and class."""
        return provider_records.fetch_consumer(self.get(context), consumer)[0]

    def classes_of(self, consumer: str) -> frozenset[tuple[str, str]]:
        """Return the providers and classes that a consumer allocates."""
        return frozenset(
            (provider, name)
            for provider, amounts in self.read(consumer).items()
            for name in amounts
        )

    def providers_of(self, consumer: str) -> frozenset[str]:
        """Return the uuids of the providers that a consumer allocates."""
        return frozenset(self.read(consumer))

    def consumers_of(self, provider: str) -> provider_records.Amounts | None:
        """Return amounts by consumer and class, None without the provider."""
        record = provider_records.fetch_allocations(self.get(), provider)
        return None if record is None else record[1]

    def create(self, instance: Any, allocations: Mapping[str, Any]) -> None:
        """Create the allocations of a server that has none.

        :param allocations: resources by the uuid of their provider, as in
            Placement's allocation candidates.
        """
        if not self.client.claim_resources(
            nova_context.get_admin_context(),
            instance.uuid,
            {"allocations": dict(allocations)},
            instance.project_id,
            instance.user_id,
            nova_client.MICROVERSION,
        ):
            raise errors.ServiceError(
                "PUT",
                f"/allocations/{instance.uuid}",
                None,
                "something of it is taken",
            )

    def change(
        self,
        context: Any,
        consumer: str,
        edit: Callable[[dict[str, Mapping[str, int]]], None],
    ) -> None:
        """Change what a consumer allocates. Idempotent.

        No request is sent if nothing changes. After a generation conflict
        the allocations are read and edited again.

        :param edit: changes amounts by provider and class.
        """
        client = self._open(context)
        for attempts_left in reversed(range(_ATTEMPTS)):
            before, fields, _ = provider_records.fetch_consumer(
                client.fetch, consumer
            )
            after = dict(before)
            edit(after)
            if after == before:
                return
            by_provider = {u: {"resources": {**r}} for u, r in after.items()}
            try:
                client.put(
                    f"/allocations/{consumer}",
                    fields | {"allocations": by_provider},
                )
            except errors.ServiceError as error:
                if error.code != _CONCURRENT or not attempts_left:
                    raise
            else:
                return

    # -- Nova's tracker ----------------------------------------------------

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def drop_migration_context(self, migration: Any) -> bool:
        """Drop a server's migration context if nothing has changed it.

        Nova writes the context of a new move under its lock.

        :param migration: that the context is of.
        :returns: whether it was dropped.
        """
        instance = nova_records.read_instance(migration.instance_uuid)
        is_idle = instance.task_state is None
        if not is_idle or not ledger.is_current(instance, migration):
            return False
        LOG.info("Dropping the failed migration of server %s", instance.uuid)
        instance.drop_migration_context()
        return True


_METHOD = "get_allocations_for_provider_tree"


class TrackerAllocations(dict[str, Any]):
    """Allocations by consumer, read by the first use.

    A plain dictionary from then on: Nova changes it, and sends it to
    Placement. json's encoder sees no subclass, so it must not be the first
    user; Nova sends allocations only after it has changed them.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._read: Callable[[], dict[str, Any]] | None = read

    def load(self) -> None:
        """Read the allocations, if they were not read.

        :raises Exception: what Nova's client raises; the next use reads
            again.
        """
        if self._read is not None:
            allocations = self._read()
            self._read = None
            self.update(allocations)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return {name: copy.deepcopy(row, memo) for name, row in self.items()}


def _load_first(name: str) -> Callable[..., Any]:
    stock = getattr(dict, name)

    @functools.wraps(stock)
    def method(self: TrackerAllocations, *args: Any, **kwargs: Any) -> Any:
        self.load()
        return stock(self, *args, **kwargs)

    return method


for _name in (
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__"),
    *("__iter__", "__len__", "__ne__", "__or__", "__repr__", "__ror__"),
    *("__reversed__", "__setitem__", "clear", "copy", "get", "items"),
    *("keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(TrackerAllocations, _name, _load_first(_name))


def read_on_use(client: Any) -> None:
    """Let Nova's client return allocations that their first use reads.

    Nova's tracker is their only reader. An error of this module does not
    reach it: then they are read at once.

    :param client: ``nova.scheduler.client.report.SchedulerReportClient``.
    """
    if _METHOD in vars(client):
        return
    read = getattr(client, _METHOD)

    def build(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return TrackerAllocations(functools.partial(read, *args, **kwargs))
        except Exception:
            LOG.exception("Allocations for Nova's tracker are read at once")
            allocations: dict[str, Any] = read(*args, **kwargs)
            return allocations

    setattr(client, _METHOD, build)
