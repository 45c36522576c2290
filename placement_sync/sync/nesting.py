# SPDX-License-Identifier: Apache-2.0
"""Calls to skip because of a failed call on a related provider."""

from nova_accel.model import providers
from placement_sync.client import calls


class Nesting:
    """Parents of providers, and the providers that are stopped."""

    def __init__(self, *trees: providers.ProviderTree) -> None:
        self._parents: dict[str, set[str]] = {}
        for node in (node for tree in trees for node in tree.nodes):
            self._parents.setdefault(node.uuid, set()).add(node.parent)
        self._stopped: set[str] = set()

    def stop(self, call: calls.Call) -> None:
        """Stop the provider of a call for this attempt."""
        if not isinstance(call, calls.Name):
            self._stopped.add(call.uuid)

    def is_stopped(self, call: calls.Call) -> bool:
        """Return whether a call has to wait for another attempt.

        Calls on a stopped provider and on its descendants wait, and so do
        deletes of its ancestors.
        """
        if isinstance(call, calls.Name):
            return False
        if self._stopped & self._list_lineage(call.uuid):
            return True
        return isinstance(call, calls.DeleteProvider) and any(
            call.uuid in self._list_lineage(uuid) for uuid in self._stopped
        )

    def _list_lineage(self, uuid: str) -> set[str]:
        """Return a provider and its ancestors in all trees."""
        lineage: set[str] = set()
        todo = {uuid}
        while todo:
            lineage |= todo
            parents = {p for u in todo for p in self._parents.get(u, ())}
            todo = parents - lineage
        return lineage
