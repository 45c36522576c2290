# SPDX-License-Identifier: Apache-2.0
"""Collection of state from all sources of an audit.

The order of the reads is part of the proof: it reverses the order of a
server's life (allocation, claim, partition, domain). The kernel is read
first, then libvirt, nova-compute's claims, Placement, and Nova last. An
object that is created meanwhile is then visible in the sources read later.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

from nova_accel import errors, model
from nova_accel.host.state import claims_file
from nova_accel.model import domains, names, providers
from placement_sync.audit import collected_state
from placement_sync.audit.collected_state import StateSource
from placement_sync.client import (
    nova_api,
    provider_records,
    rest,
    service_client,
)

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalSources:
    """Readers of the host itself; each raises AcceleratorError.

    ``read_domains`` is None if libvirt of the host can't be reached;
    ``no_domains_reason`` says why. ``prove_stock`` returns whether
    nova-compute of the host is proved to run without this library; None
    without its state directory.
    """

    read_host: Callable[[], model.HostState]
    read_claims: Callable[[], claims_file.RecordedClaims]
    read_domains: Callable[[], Iterable[domains.Domain]] | None
    no_domains_reason: str = ""
    prove_stock: Callable[[], bool] | None = None


class StateCollector:
    """Reads the state of one compute node from all sources."""

    def __init__(
        self,
        root: providers.ProviderRoot,
        placement: service_client.ServiceClient,
        compute: rest.RestClient | None,
        local: LocalSources,
        no_compute_reason: str = "",
    ) -> None:
        """Read nothing yet.

        :param compute: client of Nova's API; None without credentials, for
            ``no_compute_reason``.
        """
        self.root = root
        self._placement = placement
        self._compute = compute
        self._local = local
        self._no_compute_reason = no_compute_reason

    def collect(
        self, only: frozenset[str] | None = None
    ) -> collected_state.CollectedState:
        """Return the state of this host.

        :param only: the consumers to read from Nova one by one; None for
            all that Nova does not list on this host. Other consumers stay
            unread.
        """
        gaps = _Gaps()
        host = gaps.read(StateSource.KERNEL, self._local.read_host)
        if host is not None:
            _add_kernel_gaps(gaps, host)
        guests = gaps.read(StateSource.DOMAINS, self._read_domains)
        claims = gaps.read(StateSource.CLAIMS, self._read_claims)
        own = gaps.read(StateSource.PROVIDERS, self._read_providers)
        allocations = None
        if own is None:
            gaps.add(
                StateSource.ALLOCATIONS, gaps.reasons[StateSource.PROVIDERS]
            )
        else:
            allocations = gaps.read(
                StateSource.ALLOCATIONS,
                lambda: tuple(
                    allocation
                    for provider in own
                    for allocation in provider_records.list_allocations(
                        self._placement.fetch, provider.uuid
                    )
                ),
            )
        state = collected_state.CollectedState(
            root=self.root,
            providers=own,
            allocations=allocations,
            claims=claims,
            domains=guests,
            host=host,
            is_stock=gaps.read(StateSource.SERVICE, self._prove_stock),
        )
        return self._add_nova(self._add_unallocated(state, gaps), gaps, only)

    def _add_unallocated(
        self, state: collected_state.CollectedState, gaps: "_Gaps"
    ) -> collected_state.CollectedState:
        """Add consumers whose claims exceed allocations, and inventories."""
        unallocated = collected_state.StateIndex(state).unallocated()
        consumers = gaps.read(
            StateSource.ALLOCATIONS,
            lambda: {
                uuid: self._read_consumer(uuid) for uuid, _ in unallocated
            },
        )
        state = dataclasses.replace(state, consumers=consumers or {})
        uuids = {uuid for _, uuid in unallocated}
        if self._list_without_node(state):
            uuids.add(self.root.uuid)
        if state.is_stock:
            uuids |= {provider.uuid for provider in state.providers or ()}
        inventories = gaps.read(
            StateSource.PROVIDERS,
            lambda: {uuid: self._read_inventories(uuid) for uuid in uuids},
        )
        return dataclasses.replace(state, inventories=inventories or {})

    def _list_without_node(
        self, state: collected_state.CollectedState
    ) -> frozenset[str]:
        """Return consumers without an allocation of the compute node."""
        return frozenset(
            uuid
            for uuid, consumer in state.consumers.items()
            if self.root.uuid not in consumer.allocations
        )

    def _add_nova(
        self,
        state: collected_state.CollectedState,
        gaps: "_Gaps",
        only: frozenset[str] | None,
    ) -> collected_state.CollectedState:
        consumers = {a.consumer for a in state.allocations or ()}
        migrations, servers = self._read_nova(
            gaps, consumers, only, self._list_without_node(state)
        )
        return dataclasses.replace(
            state, servers=servers, migrations=migrations, unread=gaps.reasons
        )

    def _read_consumer(self, uuid: str) -> collected_state.ConsumerAllocations:
        allocations, fields, _ = provider_records.fetch_consumer(
            self._placement.fetch, uuid
        )
        return collected_state.ConsumerAllocations(
            allocations=allocations,
            project=str(fields.get("project_id") or ""),
            user=str(fields.get("user_id") or ""),
        )

    def _read_inventories(self, provider: str) -> collected_state.Inventories:
        stored = provider_records.fetch_inventories(
            self._placement.fetch, provider
        )
        return stored[1] if stored else {}

    def _read_nova(
        self,
        gaps: "_Gaps",
        consumers: set[str],
        only: frozenset[str] | None,
        unallocated: frozenset[str],
    ) -> tuple[
        tuple[nova_api.Migration, ...] | None,
        dict[str, nova_api.Server | None] | None,
    ]:
        host = gaps.read(
            StateSource.SERVERS,
            lambda: nova_api.read_service_host(self._nova, self.root.uuid),
        )
        if host is None:
            gaps.add(StateSource.MIGRATIONS, gaps.reasons[StateSource.SERVERS])
            return None, None
        migrations = gaps.read(
            StateSource.MIGRATIONS,
            lambda: nova_api.read_migrations(self._nova, host),
        )
        answer = gaps.read(
            StateSource.SERVERS,
            lambda: nova_api.read_servers(
                self._nova, host, consumers, migrations, only, unallocated
            ),
        )
        servers, reason = answer or (None, "")
        if reason:
            gaps.add(StateSource.SERVERS, reason)
        return migrations, servers

    def collect_all_hosts(
        self, only: str = ""
    ) -> collected_state.CollectedState:
        """Return the providers of all hosts.

        :param only: uuid of a provider; only those of its host are read.
        """
        gaps = _Gaps()
        marked = gaps.read(
            StateSource.EVERYWHERE,
            lambda: provider_records.list_with_trait(
                self._placement.fetch, names.OWNER_TRAIT
            ),
        )
        if only and marked is not None:
            roots = {p.root for p in marked if p.uuid == only}
            marked = [p for p in marked if p.root in roots]
        gone: frozenset[str] | None = None
        used: frozenset[str] | None = None
        if marked is not None:
            listed = marked
            gone = gaps.read(
                StateSource.HYPERVISORS, lambda: self._read_gone(listed)
            )
            used = gaps.read(
                StateSource.EVERYWHERE,
                lambda: self._read_used(listed, gone or frozenset()),
            )
        return collected_state.CollectedState(
            root=self.root,
            everywhere=None if used is None else tuple(marked or ()),
            gone=gone,
            used=used or frozenset(),
            unread=gaps.reasons,
        )

    def _read_used(
        self,
        listed: Iterable[providers.Provider],
        gone: frozenset[str],
    ) -> frozenset[str]:
        """Return the providers of removed hosts that have allocations."""
        return frozenset(
            provider.uuid
            for provider in listed
            if provider.root in gone
            and provider_records.list_allocations(
                self._placement.fetch, provider.uuid
            )
        )

    def is_claimed(self, handle: str) -> bool:
        """Return whether a server has a claim on a partition now.

        :raises AcceleratorError: the claims can't be read.
        """
        return any(claim.handle == handle for claim in self._read_claims())

    @property
    def _nova(self) -> rest.RestClient:
        if self._compute is None:
            raise nova_api.NoAnswerError(self._no_compute_reason)
        return self._compute

    def _prove_stock(self) -> bool:
        if self._local.prove_stock is None:
            raise nova_api.NoAnswerError(
                "--root is another machine; name the directory of its"
                " nova-compute with --state-dir"
            )
        return self._local.prove_stock()

    def _read_domains(self) -> tuple[domains.Domain, ...]:
        if self._local.read_domains is None:
            raise nova_api.NoAnswerError(self._local.no_domains_reason)
        return tuple(self._local.read_domains())

    def _read_claims(self) -> tuple[model.Claim, ...]:
        recorded = self._local.read_claims()
        if not recorded.is_known:
            raise nova_api.NoAnswerError(recorded.reason)
        if recorded.root != self.root:
            node = recorded.root.name if recorded.root else "no compute node"
            raise nova_api.NoAnswerError(
                f"the published claims are those of {node}"
            )
        return recorded.claims

    def _read_providers(self) -> tuple[providers.Provider, ...]:
        """Return our providers below the root, by trait or by uuid."""
        rows = provider_records.list_with_trait(
            self._placement.fetch, names.OWNER_TRAIT, self.root.uuid
        )
        marked = {p.uuid for p in rows}
        tree = provider_records.list_providers(
            self._placement.fetch, {"in_tree": self.root.uuid}
        )
        listed = {p.uuid: p for p in tree if p.uuid != self.root.uuid}
        return tuple(
            provider
            for uuid, provider in listed.items()
            if names.is_own_provider(
                self.root.uuid, self.root.name, provider.name, uuid
            )
            or (
                uuid in marked
                and not names.is_of_other_host(self.root.name, provider.name)
            )
        )

    def _read_gone(
        self, everywhere: Iterable[providers.Provider]
    ) -> frozenset[str]:
        """Return the roots of providers whose compute node Nova removed.

        Without roots that Nova never had: placement-sync maintains those.
        """
        roots = {p.root for p in everywhere}
        return frozenset(
            root
            for root in nova_api.find_removed_nodes(self._nova, roots)
            if self._has_compute_trait(root)
        )

    def _has_compute_trait(self, root: str) -> bool:
        stored = provider_records.fetch_traits(self._placement.fetch, root)
        return stored is not None and (
            collected_state.COMPUTE_TRAIT in stored[1]
        )


class _Gaps:
    """Reasons of sources that were not read, or not completely."""

    def __init__(self) -> None:
        self.reasons: dict[StateSource, str] = {}

    def add(self, source: StateSource, reason: str) -> None:
        self.reasons[source] = reason

    def read(self, source: StateSource, read: Callable[[], _T]) -> _T | None:
        """Return the data of a source, or add a gap and return None."""
        try:
            return read()
        except errors.AcceleratorError as error:
            self.add(source, str(error))
        return None


def _add_kernel_gaps(gaps: _Gaps, host: model.HostState) -> None:
    if host.unknown:
        unread = ", ".join(sorted(host.unknown))
        gaps.add(StateSource.KERNEL, f"{unread} can't be read")
    elif not host.complete:
        gaps.add(
            StateSource.KERNEL,
            "some devices can't be read: "
            + "; ".join(f"{p.where}: {p.reason}" for p in host.problems),
        )
