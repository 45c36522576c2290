# SPDX-License-Identifier: Apache-2.0
"""Servers, flavors and migrations as Nova's API shows them."""

import dataclasses
from collections.abc import Mapping

# Migrations that are over (nova/db/main/api.py,
# migration_get_in_progress_by_host_and_node). A resize that is "finished"
# waits to be confirmed, and an evacuation that is "done" for its source to
# come back: those hold allocations still.
_OVER = frozenset(
    {"confirmed", "reverted", "error", "failed", "completed", "cancelled"}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlavor:
    """The flavor that a server was made of.

    ``root_gb`` is the root disk, ``other_gb`` ephemeral and swap disks.
    """

    vcpus: int
    memory_mb: int
    root_gb: int
    other_gb: int
    extra_specs: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as Nova has it.

    ``node`` is the name of its compute node, empty while it has none;
    ``task`` its task state, empty while Nova does nothing with it.
    ``flavor`` is None where Nova does not show it with its extra specs,
    ``is_volume_backed`` where it is not known whether the root disk, at
    ``root_device``, is a volume.
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
    """A server's move; its uuid holds allocations while it goes on."""

    uuid: str
    server: str
    status: str
    kind: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether Nova holds nothing for it any more."""
        return self.status in _OVER
