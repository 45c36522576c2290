# SPDX-License-Identifier: Apache-2.0
"""Reporter: owned providers in Nova's provider tree and report client.

Nova's resource tracker and the pass over Placement (``reconcile``) call it
from two threads. The tracker's provider tree is shared with it from
``use_tree`` on.
"""

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import os_traits
from nova import context as nova_context
from nova import exception

from nova_accel import model
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff
from virt_hooks import error_guards
from virt_hooks.report import nova_provider_tree
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Placement accepts OWNER_NOVA if its os-traits has it; Nova sets and
# requires it since Nova 34.
OWNER_TRAITS = frozenset({names.OWNER_TRAIT}) | (
    {names.NOVA_OWNER_TRAIT}
    if hasattr(os_traits, names.NOVA_OWNER_TRAIT)
    else frozenset()
)

# How often an update is sent again after a generation conflict: as often
# as Nova's resource tracker does (_update_to_placement).
_ATTEMPTS = 4
# Placement accepts a provider with its parent, and returns it
# (api-ref, Create resource provider).
_MICROVERSION = "1.20"
# Microversion of allocations, as Nova's scheduler uses it
# (client/report.py, SAME_SUBTREE_VERSION).
_ALLOCATION_VERSION = "1.36"
# Seconds until the creation of a provider is tried again after another
# provider had its name.
_NAME_RETRY_S = 300.0
_OK, _ABSENT, _CONFLICT = 200, 404, 409


class Reporter:
    """Reports a node's accelerators; allocated providers never shrink."""

    def __init__(self, accel: lifecycle.Lifecycle, virtapi: Any) -> None:
        """Report through ``virtapi``'s client of Placement."""
        self._accel = accel
        self._virtapi = virtapi
        #: Providers that may shrink: they have no allocations.
        self._free: frozenset[str] = frozenset()
        #: The tree that Nova's resource tracker assigns slots from.
        self._nova_tree: Any = None
        #: Owned providers that Nova has, or is about to create.
        self._reported: frozenset[str] = frozenset()
        #: Those of them that Placement lacked at the end of the last pass.
        self._absent: frozenset[str] = frozenset()
        #: Providers that can't be created, since other providers have
        #: their names, with the time of the next attempt.
        self._name_conflicts: dict[str, float] = {}
        #: The desired tree of the last update of Nova's tree.
        self._desired: providers.ProviderTree | None = None

    def desired(self) -> providers.ProviderTree | None:
        """Return the desired tree, None before the node is known."""
        return self._accel.tree(OWNER_TRAITS)

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
        excluded = set(self._name_conflicts)
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
            provider_tree, desired, free, self._accel.host.state
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
        now = time.monotonic()
        self._name_conflicts = {
            uuid: retry_at
            for uuid, retry_at in self._name_conflicts.items()
            if retry_at > now
        }
        desired = self.desired()
        if desired is None or all(
            provider_tree.exists(node.uuid)
            for node in self._exclude_conflicts(desired).nodes
        ):
            return []
        created = [
            call.uuid
            for call in self._plan(provider_tree)
            if isinstance(call, calls.CreateProvider)
            and call.uuid not in self._name_conflicts
            and self._create(call, desired.root)
        ]
        if created:
            self._invalidate_tree(desired.root)
        return created

    def _create(
        self, call: calls.CreateProvider, root: providers.ProviderRoot
    ) -> bool:
        """Create a provider; return whether it is below this host now.

        A provider that is elsewhere in Placement is left to Nova or to the
        pass over Placement.
        """
        client, path = self._virtapi.reportclient, "/resource_providers"
        record = {
            "uuid": call.uuid,
            "name": call.name,
            "parent_provider_uuid": call.parent,
        }
        answer = client.post(path, record, version=_MICROVERSION)
        if answer.status_code == _OK:
            LOG.info("%s", call)
        elif answer.status_code == _CONFLICT:
            answer = client.get(f"{path}/{call.uuid}", version=_MICROVERSION)
            if answer.status_code == _ABSENT:
                retry_at = time.monotonic() + _NAME_RETRY_S
                self._name_conflicts[call.uuid] = retry_at
        if answer.status_code != _OK:
            return False
        return bool(answer.json()["root_provider_uuid"] == root.uuid)

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
        nova_provider_tree.update_tree(
            provider_tree,
            desired,
            self.guard(provider_tree, desired),
            startup_slots,
        )
        self._reported = nova_provider_tree.owned_uuids(provider_tree, desired)
        self._desired = desired
        return True

    def use_tree(self, provider_tree: Any) -> None:
        """Let Nova assign the slots of an updated tree.

        From now on the pass in the other thread adds slots to this tree.
        Slots that it added since the update went to the former tree, so
        they are added here again.
        """
        # Nova's resource tracker assigns slots of the same tree from now
        # on (_update_to_placement).
        self._nova_tree = provider_tree
        desired = self.desired()
        desired = desired and self._exclude_conflicts(desired)
        if desired is not None and desired != self._desired:
            nova_provider_tree.add_new_slots(provider_tree, desired)

    @property
    def is_registered(self) -> bool:
        """Return whether Nova has reported the node itself."""
        return self._nova_tree is not None

    def add_new_slots(self, desired: providers.ProviderTree) -> None:
        """Let the next claim get slots that are new since Nova's last pass."""
        if self._nova_tree is None:
            return
        desired = self._exclude_conflicts(desired)
        nova_provider_tree.add_new_slots(self._nova_tree, desired)
        self._invalidate_if_new(desired)

    def invalidate_caches(
        self,
        desired: providers.ProviderTree,
        present: frozenset[str],
        changes: Iterable[calls.Call],
    ) -> None:
        """Let Nova's client read again what the pass has changed.

        Nova's tree is read again if it lacks a provider of Placement, or
        has one that Placement lacks: Nova may delete the latter, but a
        claim that changes it fails. No entry is removed from the client's
        cache, since another thread may be iterating over it.

        :param present: uuids of the owned providers in Placement.
        :param changes: the calls that Nova has not made.
        """
        client = self._virtapi.reportclient
        self._absent = self._reported - present
        if self._reported != present:
            self._invalidate_tree(desired.root)
        for call in changes:
            if isinstance(call, calls.UpdateProvider):
                self._invalidate_tree(desired.root)
            elif not isinstance(call, calls.Name | calls.DeleteProvider):
                client.invalidate_resource_provider(call.uuid, cacheonly=True)

    def _invalidate_if_new(self, desired: providers.ProviderTree) -> None:
        """Invalidate the tree if it lacks a desired provider.

        The provider may exist in Placement already.
        """
        if {node.uuid for node in desired.nodes} - self._reported:
            self._invalidate_tree(desired.root)

    def _invalidate_tree(self, root: providers.ProviderRoot) -> None:
        """Let Nova's next pass read the whole tree before it begins.

        Otherwise Nova reads all providers again in the middle of its pass
        when it finds a provider that is new to it, and then overwrites
        them with their former content: traits that an operator has set
        would be lost (update_from_provider_tree,
        _ensure_resource_provider).
        """
        self._virtapi.reportclient.invalidate_resource_provider(
            root.uuid, cacheonly=True
        )

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
        context = nova_context.get_admin_context()
        client = self._virtapi.reportclient

        def is_allocated(uuid: str) -> bool:
            if uuid in self._absent:
                return False  # Placement would answer 404
            try:
                answer = client.get_allocations_for_resource_provider(
                    context, uuid
                )
            except exception.ResourceProviderAllocationRetrievalFailed as e:
                LOG.warning("%s; it counts as allocated for now", e)
                return True
            return bool(answer.allocations)

        self._free = nova_provider_tree.find_shrinkable(
            provider_tree, desired, self._accel.host.state, is_allocated
        )

    def has_allocations(self, consumer: str) -> bool:
        """Return whether Placement has allocations of a consumer.

        :raises nova.exception.ConsumerAllocationRetrievalFailed: they
            can't be read.
        """
        return bool(self.providers_of(consumer))

    def providers_of(self, consumer: str) -> frozenset[str]:
        """Return the uuids of the providers that a consumer allocates.

        :raises nova.exception.ConsumerAllocationRetrievalFailed: they
            can't be read.
        """
        allocations = self._virtapi.reportclient.get_allocs_for_consumer(
            nova_context.get_admin_context(), consumer
        )
        return frozenset(allocations["allocations"])

    def allocate(self, instance: Any, allocations: Mapping[str, Any]) -> None:
        """Create the allocations of a server that has none.

        :param allocations: resources by the uuid of their provider, as in
            Placement's allocation candidates.
        :raises nova.exception.AllocationUpdateFailed: Placement refused.
        """
        if not self._virtapi.reportclient.claim_resources(
            nova_context.get_admin_context(),
            instance.uuid,
            {"allocations": dict(allocations)},
            instance.project_id,
            instance.user_id,
            _ALLOCATION_VERSION,
        ):
            raise exception.AllocationUpdateFailed(
                consumer_uuid=instance.uuid, error="something of it is taken"
            )

    def publish(self, context: Any) -> None:
        """Send changes of a claim without waiting for the next pass."""
        root = self._accel.root
        if root is None:
            return
        with error_guards.log_errors(
            "can't publish this host's accelerators at once"
        ):
            for _ in range(_ATTEMPTS):
                try:
                    nova_provider_tree.publish(
                        self._virtapi.reportclient, context, root, self._plan
                    )
                except exception.ResourceProviderUpdateConflict as error:
                    LOG.debug("publication had a conflict: %s", error)
                else:
                    return
            LOG.warning("accelerators are reported with the next pass")

    def _plan(self, provider_tree: Any) -> list[calls.ProviderCall]:
        desired = self.desired()
        if desired is None:
            return []
        return nova_provider_tree.plan(
            provider_tree, desired, self.guard(provider_tree, desired)
        )
