# SPDX-License-Identifier: Apache-2.0
"""Reporter: owned providers in Nova's provider tree and report client.

Nova's resource tracker and the pass over Placement (``reconcile``) call it
from two threads. The tracker's provider tree is shared with it from
``use_tree`` on.
"""

import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import os_traits

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.daemon import operations, wake_ups
from placement_sync.sync import diff
from virt_hooks import error_guards
from virt_hooks.report import (
    nova_provider_tree,
    provider_writer,
    server_allocations,
)
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Placement accepts OWNER_NOVA if its os-traits has it; Nova sets and
# requires it since Nova 34.
OWNER_TRAITS = frozenset({names.OWNER_TRAIT}) | (
    {names.NOVA_OWNER_TRAIT}
    if hasattr(os_traits, names.NOVA_OWNER_TRAIT)
    else frozenset()
)


class Reporter:
    """Reports a node's accelerators; allocated providers never shrink."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        allocations: server_allocations.ServerAllocations,
        writer: provider_writer.ProviderWriter,
    ) -> None:
        """Report the node of a Lifecycle."""
        self.accel = accel
        self._allocations = allocations
        self._writer = writer
        #: Requests for a pass over Placement.
        self.wake_ups = wake_ups.WakeUps()
        #: Durations and refusals of operations, for the status.
        self.measured = operations.Operations()
        #: Providers that may shrink: they have no allocations.
        self._free: frozenset[str] = frozenset()
        #: The tree that Nova's resource tracker assigns slots from.
        self._nova_tree: Any = None
        #: Whether an update changed Nova's tree since the start.
        self._has_changed = False
        #: Owned providers that Nova has, or is about to create.
        self.reported: frozenset[str] = frozenset()
        #: Those of them that Placement lacked at the end of the last pass.
        self._absent: frozenset[str] = frozenset()

    def desired(self) -> providers.ProviderTree | None:
        """Return the desired tree, None before the node is known."""
        return self.accel.tree(OWNER_TRAITS)

    def exclude_owned(self, allocations: Mapping[str, Any]) -> dict[str, Any]:
        """Return allocations, by provider, without our own providers."""
        desired = self.desired()
        owned = {node.uuid for node in desired.nodes} if desired else set()
        return {
            uuid: record
            for uuid, record in allocations.items()
            if uuid not in owned
        }

    def _exclude_conflicts(
        self, desired: providers.ProviderTree
    ) -> providers.ProviderTree:
        """Return the desired tree without providers that can't be created.

        Nova fails its whole update, and with it each claim of a server, if
        the name of one provider is in use by another provider (report.py,
        _create_resource_provider). The pass over Placement reports it.
        """
        excluded = self._writer.list_name_conflicts()
        while children := {
            node.uuid
            for node in desired.nodes
            if node.parent in excluded and node.uuid not in excluded
        }:
            excluded |= children
        return dataclasses.replace(
            desired,
            nodes=tuple(n for n in desired.nodes if n.uuid not in excluded),
        )

    def guard(
        self, provider_tree: Any, desired: providers.ProviderTree
    ) -> diff.Guard:
        """Return the guard for an update or publication of a tree."""
        free = self._free | self._absent
        return nova_provider_tree.guard(
            provider_tree, desired, free, self.accel.host.state
        )

    def create_new(self, provider_tree: Any) -> list[str]:
        """Create in Placement the providers that Nova's tree lacks.

        Nova reads a provider that is new to it, and creates it if it does
        not exist. If a pass creates it in between, Placement refuses
        Nova's request, as the name is in use. Nova then fails the claim or
        the delete of the server that it was processing (report.py,
        _create_resource_provider).

        :returns: the uuids of the providers that exist in Placement now
            and that Nova's tree lacks. Nova's client reads the whole tree
            again next time.
        """
        desired = self.desired()
        if desired is None or all(
            provider_tree.exists(node.uuid)
            for node in self._exclude_conflicts(desired).nodes
        ):
            return []
        conflicts = self._writer.list_name_conflicts()
        created = [
            call.uuid
            for call in self._plan(provider_tree)
            if isinstance(call, calls.CreateProvider)
            and call.uuid not in conflicts
            and self._writer.create(call, desired.root)
        ]
        if created:
            self._writer.invalidate([desired.root.uuid])
        return created

    def update_tree(
        self, provider_tree: Any, startup_slots: Iterable[model.Slot]
    ) -> bool:
        """Update Nova's tree; return False before the node is known.

        :param startup_slots: see ``nova_provider_tree.update_tree``.
        """
        desired = self.desired()
        if desired is None:
            return False
        desired = self._exclude_conflicts(desired)
        planned = nova_provider_tree.update_tree(
            provider_tree,
            desired,
            self.guard(provider_tree, desired),
            startup_slots,
        )
        self._has_changed |= bool(planned)
        self.reported = nova_provider_tree.owned_uuids(provider_tree, desired)
        return True

    def use_tree(self, provider_tree: Any) -> None:
        """Let Nova assign the slots of an updated tree.

        From now on the pass in the other thread adds slots to this tree.
        Slots that it added since the update went to the former tree, so
        they are added here again.
        """
        # Nova's resource tracker assigns slots of the same tree from now
        # on (_update_to_placement).
        is_first = not self.is_registered
        self._nova_tree = provider_tree
        if is_first and self._has_changed:
            # Without a change the first pass waits for its turn: services
            # of a whole cloud may start at the same time.
            self.wake_ups.wake()
        if (desired := self.desired()) is not None:
            nova_provider_tree.add_new_slots(
                provider_tree, self._exclude_conflicts(desired)
            )

    @property
    def is_registered(self) -> bool:
        """Return whether Nova has reported the node itself."""
        return self._nova_tree is not None

    def note_pass(
        self,
        root: str,
        changes: Collection[calls.Call],
        present: frozenset[str],
    ) -> None:
        """Let Nova's client read again what a pass over Placement changed.

        It reads the whole tree if it lacks a provider of Placement, or has one
        that Placement lacks: Nova may delete the latter, but a claim that
        changes it fails.

        :param root: uuid of the node.
        :param present: owned providers that Placement has.
        """
        self._absent = self.reported - present
        if self.reported != present:
            self._writer.invalidate([root])
        self._writer.invalidate(
            call.uuid
            for call in changes
            if not isinstance(call, calls.Name | calls.DeleteProvider)
        )

    def read_desired(self) -> tuple[providers.ProviderTree, model.HostState]:
        """Return the desired tree and the host that it was built from.

        Nova can assign its slots before they are offered in Placement.
        """
        host, desired = self.accel.host.state, self.desired()
        if desired is None:
            raise errors.AcceleratorError("the compute node is not known")
        if self._nova_tree is not None:
            creatable = self._exclude_conflicts(desired)
            nova_provider_tree.add_new_slots(self._nova_tree, creatable)
            self._invalidate_if_new(creatable)
        return desired, host

    def _invalidate_if_new(self, desired: providers.ProviderTree) -> None:
        """Invalidate the tree if it lacks a desired provider.

        The provider may exist in Placement already.
        """
        if {node.uuid for node in desired.nodes} - self.reported:
            self._writer.invalidate([desired.root.uuid])

    def reset_free(self) -> None:
        """Treat every provider as allocated until the next find_free."""
        self._free = frozenset()

    def find_free(self, provider_tree: Any) -> None:
        """Read from Placement which providers may shrink.

        :param provider_tree: Nova's, None before its first pass.
        """
        desired = self.desired()
        if desired is None or provider_tree is None:
            return
        self._invalidate_if_new(self._exclude_conflicts(desired))

        def is_allocated(uuid: str) -> bool:
            if uuid in self._absent:
                return False  # Placement would answer 404
            try:
                return self._allocations.consumers_of(uuid) != {}
            except errors.ServiceError as e:
                logs.warning(LOG, "%s; it counts as allocated for now", e)
                return True

        self._free = nova_provider_tree.find_shrinkable(
            provider_tree, desired, self.accel.host.state, is_allocated
        )

    def publish(self, context: Any) -> None:
        """Send changes of a claim without waiting for the next pass."""
        root = self.accel.root
        if root is None:
            return
        with error_guards.log_errors(
            "can't publish this host's accelerators at once"
        ):
            if not self._writer.change(context, root, self._plan):
                LOG.warning("accelerators are reported with the next pass")

    def _plan(self, provider_tree: Any) -> list[calls.ProviderCall]:
        desired = self.desired()
        if desired is None:
            return []
        return nova_provider_tree.plan(
            provider_tree, desired, self.guard(provider_tree, desired)
        )
