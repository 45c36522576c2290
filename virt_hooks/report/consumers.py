# SPDX-License-Identifier: Apache-2.0
"""Consumers of this host's claims, compared with Nova and Placement.

Nova calls its driver once at most when a server or a migration ends. A
delete whose clean-up failed, a confirmation that failed here or a move that
failed on another host leaves claims that no later call releases, so each
pass checks which consumers Nova still backs.
"""

from collections.abc import Callable, Iterable, Mapping

import nova.conf
from nova import context as nova_context
from nova import objects

from virt_hooks.spawn import lifecycle


class Consumers:
    """Finds the consumers of claims that Nova does not back any more."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        providers_of: Callable[[str], frozenset[str]],
    ) -> None:
        """Compare the claims of a Lifecycle.

        :param providers_of: returns the uuids of the providers that a
            consumer has allocations of.
        """
        self._accel = accel
        self._providers_of = providers_of

    def list_orphans(
        self, nodes: Iterable[str], expected: frozenset[str]
    ) -> Mapping[str, int]:
        """Return the consumers that Nova does not back, with versions.

        The version is that of their claims, see ``ClaimStore.versions``.

        Nova backs a consumer that is a server of this host, a server of a
        migration in progress or that migration itself, an expected server,
        or that has allocations of a provider that it has claims of.

        :param nodes: names of this host's compute nodes.
        :param expected: servers that will arrive by live migration.
        :raises nova.exception.NovaException: Nova or Placement can't be
            read; then no consumer is known to be an orphan.
        """
        # The claims are read first: Nova saves a server before its claims.
        versions = self._accel.store.versions()
        if not versions.keys() - expected:
            return {}
        context, host = nova_context.get_admin_context(), nova.conf.CONF.host
        servers = objects.InstanceList.get_by_host(
            context, host, expected_attrs=[]
        )
        backed = expected | {server.uuid for server in servers}
        if not versions.keys() - backed:
            return {}
        for node in nodes:
            backed |= _list_migrating(context, host, node)
        return {
            consumer: version
            for consumer, version in sorted(versions.items())
            if consumer not in backed
            and not self._is_allocated(context, consumer)
        }

    def _is_allocated(
        self, context: nova_context.RequestContext, consumer: str
    ) -> bool:
        """Return whether Placement allocates what a consumer claims.

        While a server moves away, its migration has its allocations here.
        """
        claimed = {claim.provider for claim in self._accel.claims_of(consumer)}
        migrations = objects.MigrationList.get_by_filters(
            context,
            {
                "instance_uuid": consumer,
                "source_compute": nova.conf.CONF.host,
            },
        )
        return any(
            claimed & self._providers_of(uuid)
            for uuid in (consumer, *(m.uuid for m in migrations))
        )


def _list_migrating(
    context: nova_context.RequestContext, host: str, node: str
) -> frozenset[str]:
    """Return the migrations in progress of a node, and their servers."""
    migrations = objects.MigrationList.get_in_progress_by_host_and_node(
        context, host, node
    )
    return frozenset(
        uuid for m in migrations for uuid in (m.uuid, m.instance_uuid)
    )
