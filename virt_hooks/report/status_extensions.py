# SPDX-License-Identifier: Apache-2.0
"""Extensions of the status of the passes, which packages register.

An extension is an entry point of the group ``nova_accel.status_extensions``:
a class that takes an ``ExtensionContext``. Samples of usage and metrics are
one. The passes know none by name.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from nova_accel.config import conf, extensions
from placement_sync.daemon import heartbeat, operations
from virt_hooks.spawn import lifecycle

GROUP = "nova_accel.status_extensions"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionContext:
    """Objects of one nova-compute that an extension may use.

    ``operations`` counts operations on servers. ``read_projects`` returns the
    known projects by server, without I/O.
    """

    settings: conf.Settings
    accel: lifecycle.Lifecycle
    beat: heartbeat.Heartbeat
    operations: operations.Operations
    read_projects: Callable[[], Mapping[str, str]]


class StatusExtension(Protocol):
    """Reader of each new status, with work of its own."""

    def start(self) -> None:
        """Begin, before the first pass."""

    def stop(self) -> None:
        """End, after the last pass."""

    def publish(self, status: heartbeat.Status) -> None:
        """Publish the status of a new pass."""

    def update(self, status: heartbeat.Status) -> None:
        """Publish a status whose pass was published before."""


def load(context: ExtensionContext) -> tuple[StatusExtension, ...]:
    """Return the extensions of the installed packages, by name.

    :raises ConfigurationError: one can't be loaded.
    """
    return tuple(build(context) for build in extensions.load(GROUP).values())
