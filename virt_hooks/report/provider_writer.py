# SPDX-License-Identifier: Apache-2.0
"""ProviderWriter: writes this node's providers to Placement.

The only writer of providers in nova-compute besides the pass over Placement,
and Nova's own resource tracker, which sends the tree that
``update_provider_tree`` has updated.

Nova's ``update_from_provider_tree`` can replace none of its methods. It
deletes the providers that its argument lacks: unless the lock of Nova's
tracker is held during its requests, it would delete a card that the tracker
has just added. A provider that it can't create, or delete, ends it before it
sends anything else.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from nova import exception

from nova_accel.model import providers
from placement_sync.client import calls
from virt_hooks import nova_private
from virt_hooks.report import nova_provider_tree

LOG = logging.getLogger(__name__)

# Placement accepts a provider with its parent, and returns it
# (api-ref, Create resource provider).
_MICROVERSION = "1.20"
# Seconds until the creation of a provider is tried again after another
# provider had its name.
_NAME_RETRY_S = 300.0
_OK, _ABSENT, _CONFLICT = 200, 404, 409
# How often a change is sent again after a generation conflict: as often
# as Nova's resource tracker does (_update_to_placement).
_ATTEMPTS = 4


class ProviderWriter:
    """Creates and changes providers; deletes none. Thread-safe."""

    def __init__(self, virtapi: Any) -> None:
        """:param virtapi: has Nova's client of Placement."""
        self._virtapi = virtapi
        #: Providers that can't be created, with the time of the next
        #: attempt.
        self._name_conflicts: dict[str, float] = {}

    def list_name_conflicts(self) -> set[str]:
        """Return the providers whose names other providers have."""
        now, conflicts = time.monotonic(), dict(self._name_conflicts)
        return {uuid for uuid, retry in conflicts.items() if retry > now}

    def create(
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

    def change(
        self,
        context: Any,
        root: providers.ProviderRoot,
        plan_for: Callable[[Any], list[calls.ProviderCall]],
    ) -> bool:
        """Send the changes of existing providers to Placement.

        After a generation conflict the changes are planned and sent again;
        False if each attempt had one.

        A provider's generation changes with each allocation, so that the
        cache of Nova's client is stale as soon as the scheduler has selected
        the provider: providers to change are read again first.

        :param context: Nova's request context.
        :param plan_for: returns the plan for Nova's tree. It is called after
            the tree was read: if a provider is changed meanwhile, Placement
            refuses the request.
        """
        for _ in range(_ATTEMPTS):
            try:
                self._change(context, root, plan_for)
            except exception.ResourceProviderUpdateConflict as error:
                LOG.debug("a change of providers had a conflict: %s", error)
            else:
                return True
        return False

    def _change(
        self,
        context: Any,
        root: providers.ProviderRoot,
        plan_for: Callable[[Any], list[calls.ProviderCall]],
    ) -> None:
        client = self._virtapi.reportclient

        def read_plan() -> tuple[Any, list[calls.ProviderCall]]:
            nova_tree = client.get_provider_tree_and_ensure_root(
                context, root.uuid, name=root.name
            )
            return nova_tree, [
                call
                for call in plan_for(nova_tree)
                if nova_tree.exists(call.uuid)
                and not isinstance(call, calls.DeleteProvider)
            ]

        _, planned = read_plan()
        if not planned:
            return
        self.invalidate(call.uuid for call in planned)
        nova_tree, planned = read_plan()
        for call in planned:
            nova_provider_tree.apply(nova_tree, [call])
            with contextlib.ExitStack() as on_error:
                # The answer may be lost after Placement has made the
                # change: the cache of Nova's client would be wrong.
                on_error.callback(self.invalidate, [call.uuid])
                _send(client, context, call, nova_tree.data(call.uuid))
                on_error.pop_all()
            LOG.info("%s", call)

    def invalidate(self, uuids: Iterable[str]) -> None:
        """Let Nova's client read providers again before it uses them.

        With the uuid of the compute node it reads the whole tree before its
        next pass begins. Otherwise it reads all providers again in the
        middle of the pass when it finds a provider that is new to it, and
        then overwrites them with their former content: traits that an
        operator has set would be lost (update_from_provider_tree,
        _ensure_resource_provider). No entry is removed from the client's
        cache, since another thread may be iterating over it.
        """
        for uuid in uuids:
            nova_private.expire_provider(self._virtapi.reportclient, uuid)


def _send(
    client: Any, context: Any, call: calls.ProviderCall, data: Any
) -> None:
    if isinstance(call, calls.SetInventories):
        client.set_inventory_for_provider(context, call.uuid, data.inventory)
    else:
        client.set_traits_for_provider(context, call.uuid, data.traits)
