# SPDX-License-Identifier: Apache-2.0
"""Background pass over Placement, as a package registers it.

The entry point of the group ``nova_accel.passes`` is a class that takes a
``PassContext``.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from virt_hooks.report import reporter

GROUP = "nova_accel.passes"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """Objects of one nova-compute; ``options`` are its options.

    ``refresh`` reads the host again and cleans up. ``recover`` recovers
    interrupted attachments, after each pass: it needs Nova's resource tracker.
    ``read_projects`` returns the known projects by server, without I/O, and
    ``is_adopting`` whether allocations are still to be moved to our providers.
    """

    options: Any
    reporter: reporter.Reporter
    refresh: Callable[[], None]
    recover: Callable[[], None]
    read_projects: Callable[[], Mapping[str, str]] = dict
    is_adopting: Callable[[], bool] = bool


class BackgroundPass(Protocol):
    """Passes over Placement while nova-compute runs."""

    def start(self) -> None:
        """Run passes from now on unless nova.conf disables them."""

    def record_checks(self, names: Iterable[str]) -> None:
        """Publish the checks of this host that failed."""

    def stop(self) -> None:
        """Run no more passes; wait some seconds for a running pass."""
