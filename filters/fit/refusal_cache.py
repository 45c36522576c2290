# SPDX-License-Identifier: Apache-2.0
"""Reasons for which groups have no candidate, kept for some seconds.

Clients try again in a full cloud: a further refusal costs no query.
"""

import threading
import time
from collections.abc import Callable

from filters.fit import no_candidates
from filters.request import AcceleratorRequest
from placement_sync.client.provider_records import Get

# Seconds for which a reason is kept.
FRESH_SECONDS = 10.0
# Different groups that are kept; a cloud has few flavors.
_MAX_GROUPS = 256

_Key = tuple[object, ...]


class RefusalCache:
    """Reasons by group; thread-safe.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reasons: dict[
            _Key, tuple[float, no_candidates.GroupRefusal | None]
        ] = {}

    def find(
        self, get: Get, request: AcceleratorRequest
    ) -> no_candidates.GroupRefusal | None:
        """Return why no host can serve a request, None if one may.

        :raises ServiceError: Placement did not respond.
        """
        for group in request.groups:
            key = (
                tuple(sorted(group.resources.items())),
                group.required,
                group.forbidden,
            )
            with self._lock:
                until, refusal = self._reasons.get(key, (0.0, None))
            if self._clock() >= until:
                refusal = no_candidates.find_refusal(get, group)
                with self._lock:
                    if len(self._reasons) >= _MAX_GROUPS:
                        self._reasons.clear()
                    until = self._clock() + FRESH_SECONDS
                    self._reasons[key] = until, refusal
            if refusal is not None:
                return refusal
        return None
