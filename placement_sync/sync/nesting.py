# SPDX-License-Identifier: Apache-2.0
"""Order of providers that nest in each other."""

from nova_accel.model import providers
from placement_sync.client import calls


class Nesting:
    """What nests in what, and which providers are stopped."""

    def __init__(self, *trees: providers.ProviderTree) -> None:
        self._parents: dict[str, set[str]] = {}
        for node in (node for tree in trees for node in tree.nodes):
            self._parents.setdefault(node.uuid, set()).add(node.parent)
        self._stopped: set[str] = set()

    def stop(self, call: calls.Call) -> None:
        """Let the provider of a call wait."""
        if not isinstance(call, calls.Name):
            self._stopped.add(call.uuid)

    def is_stopped(self, call: calls.Call) -> bool:
        """Return whether a call has to wait for another attempt.

        So have those of a provider that is stopped or nests in one, and
        the deletes of what a stopped one nests in.
        """
        if isinstance(call, calls.Name):
            return False
        if self._stopped & self._above(call.uuid):
            return True
        return isinstance(call, calls.DeleteProvider) and any(
            call.uuid in self._above(uuid) for uuid in self._stopped
        )

    def _above(self, uuid: str) -> set[str]:
        """Return a provider and all that it nests in."""
        found: set[str] = set()
        todo = {uuid}
        while todo:
            found |= todo
            above = {p for u in todo for p in self._parents.get(u, ())}
            todo = above - found
        return found
