# SPDX-License-Identifier: Apache-2.0
"""Our providers in Nova's hands: its tree, and Placement through it."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import os_traits
from nova import context as nova_context
from nova import exception

from nova_accel import errors, names, providers
from placement_sync import diff
from virt_hooks import lifecycle, tree

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


class Reporter:
    """Reports a node's accelerators; what is allocated never shrinks."""

    def __init__(self, accel: lifecycle.Lifecycle, virtapi: Any) -> None:
        """Report these; ``virtapi`` has Nova's client of Placement."""
        self._accel = accel
        self._virtapi = virtapi
        self._free: frozenset[str] = frozenset()

    def desired(self) -> providers.ProviderTree | None:
        """Return the tree as it should be, None before the node is known."""
        return self._accel.tree(OWNER_TRAITS)

    def guard(
        self, provider_tree: Any, desired: providers.ProviderTree
    ) -> diff.Guard:
        """Return the guard under which a tree is laid or published."""
        return tree.guard(
            provider_tree, desired, self._free, self._accel.host.state
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
        context = nova_context.get_admin_context()
        client = self._virtapi.reportclient

        def is_allocated(uuid: str) -> bool:
            found = client.get_allocations_for_resource_provider(
                context, uuid
            )
            return bool(found.allocations)

        self._free = tree.free_to_go(provider_tree, desired, is_allocated)

    @contextlib.contextmanager
    def reschedule(
        self, context: Any = None, uuid: str = "", is_rebuilt: bool = False
    ) -> Iterator[None]:
        """Turn an error of ours into one that Nova reschedules on, or ends.

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
            LOG.error("%s", error)
            if context is not None:
                self.publish(context)
            is_final = is_rebuilt or not getattr(error, "is_local", True)
            if uuid and is_final:
                raise exception.BuildAbortException(
                    instance_uuid=uuid, reason=str(error)
                ) from error
            raise exception.ComputeResourcesUnavailable(
                reason=str(error)
            ) from error

    def publish(self, context: Any) -> None:
        """Send what a claim changed, without waiting for the next pass."""
        desired = self.desired()
        if desired is None:
            return
        with logged("can't publish this host's accelerators at once"):
            for _ in range(_ATTEMPTS):
                try:
                    tree.publish(
                        self._virtapi.reportclient,
                        context,
                        desired,
                        self.guard,
                    )
                except exception.ResourceProviderUpdateConflict as error:
                    LOG.debug("somebody else was faster: %s", error)
                else:
                    return
            LOG.warning("accelerators are reported with the next pass")


@contextlib.contextmanager
def logged(what: str, *arguments: Any) -> Iterator[None]:
    """Log whatever fails here, and go on as stock Nova does."""
    try:
        yield
    except Exception:
        LOG.exception(what, *arguments)
