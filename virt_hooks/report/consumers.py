# SPDX-License-Identifier: Apache-2.0
"""Consumers of this host's claims, compared with Nova and Placement.

Nova tells its driver of the end of a server or a migration once at most: a
delete whose clean-up failed, a confirmation that failed here or a move that
failed elsewhere leaves claims that no later call releases. So each pass asks
which consumers Nova still backs.
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
        """Compare the claims of these accelerators.

        :param providers_of: returns the uuids of the providers that a
            consumer has allocations of.
        """
        self._accel = accel
        self._providers_of = providers_of

    def list_orphans(
        self, nodes: Iterable[str], expected: frozenset[str]
    ) -> Mapping[str, int]:
        """Return the consumers that nothing entitles to their claims.

        Each with the version of its claims, see ``Book.versions``.

        A consumer is entitled that is a server of this host, one of the
        servers of a migration in progress or that migration itself, is
        expected, or has allocations of a provider that it has claims of.

        :param nodes: names of this host's compute nodes.
        :param expected: servers that will arrive by live migration.
        :raises nova.exception.NovaException: Nova or Placement can't be
            asked; then nothing is known of any consumer.
        """
        # The claims first: Nova books a server before it claims anything.
        versions = self._accel.book.versions()
        if not versions.keys() - expected:
            return {}
        context, host = nova_context.get_admin_context(), nova.conf.CONF.host
        servers = objects.InstanceList.get_by_host(
            context, host, expected_attrs=[]
        )
        entitled = expected | {server.uuid for server in servers}
        if not versions.keys() - entitled:
            return {}
        for node in nodes:
            entitled |= _moving(context, host, node)
        return {
            consumer: version
            for consumer, version in sorted(versions.items())
            if consumer not in entitled
            and not self._is_allocated(context, consumer)
        }

    def _is_allocated(
        self, context: nova_context.RequestContext, consumer: str
    ) -> bool:
        """Return whether Placement allocates what a consumer claims.

        While a server moves away, its migration holds its allocations here.
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


def _moving(
    context: nova_context.RequestContext, host: str, node: str
) -> frozenset[str]:
    """Return the migrations in progress of a node, and their servers."""
    migrations = objects.MigrationList.get_in_progress_by_host_and_node(
        context, host, node
    )
    return frozenset(
        uuid for m in migrations for uuid in (m.uuid, m.instance_uuid)
    )
