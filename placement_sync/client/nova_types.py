# SPDX-License-Identifier: Apache-2.0
"""Servers, flavors and migrations as Nova's API shows them."""

import dataclasses
from collections.abc import Mapping

# Statuses of migrations that are over (nova/db/main/api.py,
# migration_get_in_progress_by_host_and_node). A "finished" resize waits to
# be confirmed, and a "done" evacuation for its source host: both still have
# allocations.
_OVER = frozenset(
    {"confirmed", "reverted", "error", "failed", "completed", "cancelled"}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlavor:
    """Flavor that a server was created from.

    ``root_gb`` is the root disk, ``other_gb`` ephemeral and swap disks.
    """

    vcpus: int
    memory_mb: int
    root_gb: int
    other_gb: int
    extra_specs: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Server as Nova's API shows it.

    ``node`` is the name of its compute node, empty while it has none.
    ``task`` is its task state, empty for none. ``flavor`` is None where
    Nova does not show the extra specs. ``is_volume_backed`` is None where
    the API does not show whether the root disk, at ``root_device``, is a
    volume.
    """

    uuid: str
    node: str = ""
    status: str = ""
    task: str = ""
    project: str = ""
    user: str = ""
    flavor: ServerFlavor | None = None
    root_device: str = ""
    is_volume_backed: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Migration of a server; its uuid is a consumer while it is active."""

    uuid: str
    server: str
    status: str
    kind: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether its allocations should be gone."""
        return self.status in _OVER
