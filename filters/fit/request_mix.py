# SPDX-License-Identifier: Apache-2.0
"""Requests that nova-scheduler has got lately, for the choice of hosts."""

import collections
import functools
import threading

from nova_accel.catalog import loader
from nova_accel.geometry.scheduling import usable_share, vgpu_geometry

# Requests that the mix has memory of, and the commonest of their shapes.
_MAX_REQUESTS = 8192
_MAX_SHAPES = 32
# New requests after which the mix is read again, at the latest.
_MAX_NEW = 1024


class RequestMix:
    """Shapes of the latest requests with accelerators; thread-safe.

    Requests count less the longer ago they were: all are halved when there
    are too many.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[usable_share.RequestShape] = (
            collections.Counter()
        )
        self._new = 0
        self._usual: usable_share.Usual = ()

    def add(self, shape: usable_share.RequestShape) -> None:
        """Count a request; one without accelerators is not counted."""
        if not shape.groups:
            return
        with self._lock:
            self._counts[shape] += 1
            self._new += 1
            if self._counts.total() > _MAX_REQUESTS:
                self._counts = +collections.Counter(
                    {s: n // 2 for s, n in self._counts.items()}
                )

    def list_usual(self) -> usable_share.Usual:
        """Return the commonest shapes with their parts of all requests.

        The same object until there are enough new requests.
        """
        with self._lock:
            total = self._counts.total()
            if self._new and self._new >= min(total // 4, _MAX_NEW):
                self._new = 0
                self._usual = tuple(
                    (shape, count / total)
                    for shape, count in self._counts.most_common(_MAX_SHAPES)
                )
            return self._usual


@functools.cache
def shared() -> RequestMix:
    """Return the mix that the filter counts requests in."""
    return RequestMix()


@functools.cache
def shared_shares() -> usable_share.UsableShares:
    """Return the usable shares that filter and weigher share."""
    return usable_share.UsableShares(
        vgpu_geometry.VgpuGeometry(loader.load()), shared().list_usual
    )
