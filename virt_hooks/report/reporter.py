# SPDX-License-Identifier: Apache-2.0
"""Our providers in Nova's provider tree and report client."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import os_traits
from nova import context as nova_context
from nova import exception, objects

from nova_accel import errors, model
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff
from virt_hooks.report import nova_provider_tree
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Placement knows OWNER_NOVA where its os-traits does; Nova 34 began to
# set and to require it.
OWNER_TRAITS = frozenset({names.OWNER_TRAIT}) | (
    {names.NOVA_OWNER_TRAIT}
    if hasattr(os_traits, names.NOVA_OWNER_TRAIT)
    else frozenset()
)

# How often a change is sent anew that another one overtook: as often as
# Nova's resource tracker does (_update_to_placement).
_ATTEMPTS = 4
# Placement takes a provider with its parent, and returns it
# (api-ref, Create resource provider).
_MICROVERSION = "1.20"
# As Nova's scheduler books (client/report.py, SAME_SUBTREE_VERSION).
_BOOKED_AS = "1.36"
# Seconds until the creation of a provider is tried again whose name
# another provider has.
_TAKEN_S = 300.0
_OK, _ABSENT, _CONFLICT = 200, 404, 409


class Reporter:
    """Reports a node's accelerators; what is allocated never shrinks."""

    def __init__(self, accel: lifecycle.Lifecycle, virtapi: Any) -> None:
        """Report these; ``virtapi`` has Nova's client of Placement."""
        self._accel = accel
        self._virtapi = virtapi
        self._free: frozenset[str] = frozenset()
        self._in_use: Any = None
        #: Our providers that Nova itself has, or is about to make.
        self._laid: frozenset[str] = frozenset()
        #: Those of them that Placement had not at the end of the last pass.
        self._gone: frozenset[str] = frozenset()
        #: Providers that can't be created, and when to try it again:
        #: other providers have their names.
        self._taken: dict[str, float] = {}
        #: What was laid last.
        self._desired: providers.ProviderTree | None = None

    def desired(self) -> providers.ProviderTree | None:
        """Return the tree as it should be, None before the node is known."""
        return self._accel.tree(OWNER_TRAITS)

    def _creatable(
        self, desired: providers.ProviderTree
    ) -> providers.ProviderTree:
        """Return the desired tree without providers that can't be created.

        Nova fails its whole update, and with it each claim of a server,
        for one provider whose name another provider has
        (report.py, _create_resource_provider). The pass reports it.
        """
        absent = set(self._taken)
        while below := {
            node.uuid
            for node in desired.nodes
            if node.parent in absent and node.uuid not in absent
        }:
            absent |= below
        return dataclasses.replace(
            desired,
            nodes=tuple(n for n in desired.nodes if n.uuid not in absent),
        )

    def guard(
        self, provider_tree: Any, desired: providers.ProviderTree
    ) -> diff.Guard:
        """Return the guard under which a tree is laid or published."""
        free = self._free | self._gone
        return nova_provider_tree.guard(
            provider_tree, desired, free, self._accel.host.state
        )

    def make_new(self, provider_tree: Any) -> list[str]:
        """Create in Placement the providers that Nova's tree lacks.

        Nova looks for a provider that is new to it, and makes it if there
        is none. If a pass makes it in between, Placement refuses Nova's:
        its name is taken. For Nova it is somebody else's then, and the
        claim or the delete of a server that it was at fails
        (report.py, _create_resource_provider).

        :returns: the uuids of those that Placement has now and Nova's tree
            lacks; Nova's client reads the whole tree again next time.
        """
        now = time.monotonic()
        self._taken = {u: t for u, t in self._taken.items() if t > now}
        desired = self.desired()
        if desired is None or all(
            provider_tree.exists(node.uuid)
            for node in self._creatable(desired).nodes
        ):
            return []
        made = [
            call.uuid
            for call in self._plan(provider_tree)
            if isinstance(call, calls.CreateProvider)
            and call.uuid not in self._taken
            and self._make(call, desired.root)
        ]
        if made:
            self._read_tree_anew(desired.root)
        return made

    def _make(
        self, call: calls.CreateProvider, root: providers.ProviderRoot
    ) -> bool:
        """Make a provider; return whether this host has it now.

        One that is elsewhere in Placement is Nova's, or the pass's, to find.
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
                self._taken[call.uuid] = time.monotonic() + _TAKEN_S
        if answer.status_code != _OK:
            return False
        return bool(answer.json()["root_provider_uuid"] == root.uuid)

    def lay(self, provider_tree: Any, held: Iterable[model.Slot]) -> bool:
        """Lay our providers onto Nova's tree; return whether that was done.

        It is not before the node is known.

        :param held: see ``nova_provider_tree.lay``.
        """
        desired = self.desired()
        if desired is None:
            return False
        desired = self._creatable(desired)
        nova_provider_tree.lay(
            provider_tree,
            desired,
            self.guard(provider_tree, desired),
            _resource,
            held,
        )
        self._laid = nova_provider_tree.our_uuids(provider_tree, desired)
        self._desired = desired
        return True

    def hand_out(self, provider_tree: Any) -> None:
        """Let Nova hand out the slots of a tree that was laid.

        From now on the pass in the other thread may add to it. What that
        has found since the tree was laid, it has added to the last one.
        """
        # Of the same tree Nova's resource tracker hands out slots from now
        # on (_update_to_placement).
        self._in_use = provider_tree
        newer = self.desired()
        newer = newer and self._creatable(newer)
        if newer is not None and newer != self._desired:
            nova_provider_tree.lay_new_slots(provider_tree, newer, _resource)

    @property
    def is_registered(self) -> bool:
        """Return whether Nova has reported the node itself."""
        return self._in_use is not None

    def lay_new_slots(self, desired: providers.ProviderTree) -> None:
        """Let the next claim have slots that came since Nova's last pass."""
        if self._in_use is None:
            return
        desired = self._creatable(desired)
        nova_provider_tree.lay_new_slots(self._in_use, desired, _resource)
        self._expect(desired)

    def catch_up(
        self,
        desired: providers.ProviderTree,
        present: frozenset[str],
        made: Iterable[calls.Call],
    ) -> None:
        """Have Nova read anew what others have changed in Placement.

        One that it has and Placement has not it would fail to change, and
        a claim with it: it may delete it. Nothing is taken out of its cache
        here, since it may be walking through it in another thread.

        :param present: uuids of our providers that Placement has.
        :param made: the changes that Nova has not made.
        """
        client = self._virtapi.reportclient
        self._gone = self._laid - present
        if self._laid != present:
            self._read_tree_anew(desired.root)
        for call in made:
            if isinstance(call, calls.UpdateProvider):
                self._read_tree_anew(desired.root)
            elif not isinstance(call, calls.Name | calls.DeleteProvider):
                client.invalidate_resource_provider(call.uuid, cacheonly=True)

    def _expect(self, desired: providers.ProviderTree) -> None:
        """Prepare for providers that are new to Nova, and maybe not new."""
        if {node.uuid for node in desired.nodes} - self._laid:
            self._read_tree_anew(desired.root)

    def _read_tree_anew(self, root: providers.ProviderRoot) -> None:
        """Have Nova's next pass begin with the whole tree as it is.

        When it meets a provider that it did not know, it reads the others
        anew in the middle of its pass, and writes over what it has read
        what it knew before: an operator's own traits would go
        (update_from_provider_tree, _ensure_resource_provider).
        """
        self._virtapi.reportclient.invalidate_resource_provider(
            root.uuid, cacheonly=True
        )

    def forget_free(self) -> None:
        """Take every provider for allocated until somebody looks again."""
        self._free = frozenset()

    def find_free(self, provider_tree: Any) -> None:
        """Ask Placement which providers may shrink.

        :param provider_tree: Nova's, None before its first pass.
        """
        desired = self.desired()
        if desired is None or provider_tree is None:
            return
        self._expect(self._creatable(desired))
        context = nova_context.get_admin_context()
        client = self._virtapi.reportclient

        def is_allocated(uuid: str) -> bool:
            if uuid in self._gone:
                return False  # Placement would say 404
            try:
                found = client.get_allocations_for_resource_provider(
                    context, uuid
                )
            except exception.ResourceProviderAllocationRetrievalFailed as e:
                LOG.warning("%s; it stays for now", e)
                return True
            return bool(found.allocations)

        self._free = nova_provider_tree.free_to_go(
            provider_tree, desired, self._accel.host.state, is_allocated
        )

    def is_booked(self, consumer: str) -> bool:
        """Return whether Placement has allocations of a consumer.

        :raises nova.exception.ConsumerAllocationRetrievalFailed: it does
            not say.
        """
        return bool(self.providers_of(consumer))

    def providers_of(self, consumer: str) -> frozenset[str]:
        """Return the uuids of the providers that a consumer allocates.

        :raises nova.exception.ConsumerAllocationRetrievalFailed: Placement
            does not say.
        """
        allocations = self._virtapi.reportclient.get_allocs_for_consumer(
            nova_context.get_admin_context(), consumer
        )
        return frozenset(allocations["allocations"])

    def book(self, instance: Any, booked: Mapping[str, Any]) -> None:
        """Have Placement allocate to a server that has nothing.

        :param booked: resources by the uuid of their provider, as in
            Placement's allocation candidates.
        :raises nova.exception.AllocationUpdateFailed: it was refused.
        """
        if not self._virtapi.reportclient.claim_resources(
            nova_context.get_admin_context(),
            instance.uuid,
            {"allocations": dict(booked)},
            instance.project_id,
            instance.user_id,
            _BOOKED_AS,
        ):
            raise exception.AllocationUpdateFailed(
                consumer_uuid=instance.uuid, error="something of it is taken"
            )

    @contextlib.contextmanager
    def reschedule(
        self, context: Any = None, uuid: str = "", is_rebuilt: bool = False
    ) -> Iterator[None]:
        """Turn an error of ours into one that Nova reschedules on, or ends.

        Nova stores its text as the server's fault, which the server's owner
        reads; the operator's text is logged.

        What is wrong with a bitstream itself is wrong on each host: no
        other one is tried for a new server, and its user is told why.
        Nor is there one for a server that is rebuilt where it is: Nova
        would take it for evacuated, and give up what is booked for it.

        :param context: publish the host anew, with this context.
        :param uuid: of a server that is spawned.
        :param is_rebuilt: whether it is rebuilt on this host.
        """
        try:
            yield
        except errors.AcceleratorError as error:
            named = uuid and uuid not in str(error)
            LOG.error("%s%s", f"server {uuid}: " if named else "", error)
            if context is not None:
                self.publish(context)
            is_final = is_rebuilt or not getattr(error, "is_local", True)
            if uuid and is_final:
                raise exception.BuildAbortException(
                    instance_uuid=uuid, reason=error.public
                ) from error
            raise exception.ComputeResourcesUnavailable(
                reason=error.public
            ) from error

    def publish(self, context: Any) -> None:
        """Send what a claim changed, without waiting for the next pass."""
        root = self._accel.root
        if root is None:
            return
        with logged("can't publish this host's accelerators at once"):
            for _ in range(_ATTEMPTS):
                try:
                    nova_provider_tree.publish(
                        self._virtapi.reportclient, context, root, self._plan
                    )
                except exception.ResourceProviderUpdateConflict as error:
                    LOG.debug("somebody else was faster: %s", error)
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


def _resource(slot: model.Slot) -> Any:
    return objects.Resource(
        provider_uuid=slot.provider,
        resource_class=slot.resource_class,
        identifier=slot.identifier,
    )


@contextlib.contextmanager
def logged(what: str, *arguments: Any) -> Iterator[None]:
    """Log whatever fails here, and go on as stock Nova does."""
    try:
        yield
    except Exception:
        LOG.exception(what, *arguments)
