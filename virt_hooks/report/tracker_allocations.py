# SPDX-License-Identifier: Apache-2.0
"""Allocations of a tree for Nova's tracker, read only if they are used.

Nova's tracker reads them in each update, under the lock of all claims: one
request for each provider and for each of their consumers
(_update_to_placement). It uses them for a reshape, and with
``[pci]report_in_placement``; otherwise the requests are for nothing.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)
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
