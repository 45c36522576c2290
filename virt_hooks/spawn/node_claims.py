# SPDX-License-Identifier: Apache-2.0
"""Claims of the servers of a compute node, and what is published of them.

The claims are in memory (``store``). With each change they are written to the
claims file, which other processes read, and ``tree`` builds the desired
providers of them and of the last reading of the host. Neither happens before
the node and the host devices of its domains are known: a tree without them
would reserve devices that servers have.
"""

import logging
import threading
from collections.abc import Mapping

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import snapshot
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store, host_access

LOG = logging.getLogger(__name__)


class NodeClaims:
    """Claims of one compute node. Thread-safe."""

    def __init__(
        self,
        rules: policy.DeviceRules,
        host: snapshot.Snapshot,
        access: host_access.HostAccess,
    ) -> None:
        self.rules = rules
        self.host = host
        self.root: providers.ProviderRoot | None = None
        self.store = claim_store.ClaimStore(self._publish_claims)
        #: Consumers of claims that Nova does not back any more.
        self.unbacked_consumers: frozenset[str] = frozenset()
        #: Claimed amounts that Placement has not allocated.
        self.unallocated: Mapping[model.ClassKey, int] = {}
        self._use = connection.TrackedUse(access.domains)
        self._has_read_use = False
        self._claims_file = access.claims_file
        self._publish_lock = threading.Lock()
        #: Host, further inputs and result of the last call of ``tree``.
        self._built_tree: (
            tuple[model.HostState, object, providers.ProviderTree] | None
        ) = None

    def adopt(self, root: providers.ProviderRoot) -> None:
        """Serve the compute node of this name and uuid."""
        if self.root != root:
            LOG.info("accelerators are children of %s", root.name)
        self.root = root

    @property
    def is_ready(self) -> bool:
        """Return whether claims and hostdevs of the node were read.

        False until the first clean-up.
        """
        return self._has_read_use and self.root is not None

    def tree(
        self, owner_traits: frozenset[str]
    ) -> providers.ProviderTree | None:
        """Return the desired tree from the last reading, no I/O.

        None before the compute node is known. The tree is built again only
        if an input has changed: Nova needs it under the lock of its claims.
        """
        root, state, functions = (
            self.root,
            self.host.state,
            self._use.functions,
        )
        if root is None:
            return None
        claims = self._marked_claims()
        inputs = (root, claims, owner_traits, functions)
        built = self._built_tree
        if built is None or built[0] is not state or built[1] != inputs:
            tree = tree_builder.build_tree(
                root, state, self.rules, claims, owner_traits, functions
            )
            built = self._built_tree = state, inputs, tree
        return built[2]

    def set_unbacked_consumers(self, consumers: frozenset[str]) -> None:
        """Reserve the claims of consumers that Nova does not back any more.

        :param consumers: all of them; Nova backs any other consumer.
        """
        if consumers != self.unbacked_consumers:
            self.unbacked_consumers = consumers
            self._publish_claims()

    def set_unallocated(self, missing: Mapping[model.ClassKey, int]) -> None:
        """Reserve exactly the claimed amounts that are not allocated."""
        self.unallocated = missing
        self._publish_claims()

    def claims(self) -> tuple[model.Claim, ...]:
        return self.store.claims()

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        return self.store.claims_of(consumer)

    def slots_of(self, consumer: str) -> tuple[model.Slot, ...]:
        return claim_store.slots_of(self.claims_of(consumer))

    def _marked_claims(self) -> tuple[model.Claim, ...]:
        """Return all claims, with whether Placement and Nova back them."""
        return claim_store.mark(
            self.claims(), self.unbacked_consumers, self.unallocated
        )

    def _publish_claims(self) -> None:
        """Write the claims file, which other processes read."""
        if (
            self._claims_file is None
            or self.root is None
            or not self._has_read_use
        ):
            return
        with self._publish_lock:
            self._claims_file.write(
                self.root, self._marked_claims(), self._use.functions
            )
