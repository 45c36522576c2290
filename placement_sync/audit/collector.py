# SPDX-License-Identifier: Apache-2.0
"""Collection of evidence from all sources of an audit.

The order is part of the proof. Who comes after whom in a server's life
(allocation, claim, partition, domain) is asked before: the kernel first,
then libvirt, nova-compute's claims, Placement, and Nova last. What is made
meanwhile is then known to whoever is asked later.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nova_accel import errors, model
from nova_accel.host.state import claims_file
from nova_accel.model import domains, names, providers
from placement_sync.audit import collected_state
from placement_sync.audit.collected_state import StateSource
from placement_sync.client import (
    nova_api,
    nova_types,
    provider_cache,
    provider_records,
    rest,
)

_OWNER = names.OWNER_TRAIT
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalSources:
    """How the host itself is asked; each raises AcceleratorError.

    None for who can't be asked of this host at all; ``why`` says why.
    """

    read_host: Callable[[], model.HostState]
    read_book: Callable[[], claims_file.RecordedClaims]
    read_domains: Callable[[], Iterable[domains.Domain]] | None
    why: str = ""


class StateCollector:
    """Reads evidence of one compute node."""

    def __init__(
        self,
        root: providers.ProviderRoot,
        placement: rest.RestClient,
        compute: rest.RestClient | None,
        local: LocalSources,
        why: str = "",
    ) -> None:
        """Ask these; nothing is read yet.

        :param compute: Nova's API; None if there is none to ask, and then
            ``why`` says why.
        """
        self.root = root
        self._placement = placement
        self._compute = compute
        self._local = local
        self._why = why

    def look(
        self, only: frozenset[str] | None = None
    ) -> collected_state.CollectedState:
        """Return what is known of this host.

        :param only: the consumers that Nova is asked about by their uuid;
            None for all that it does not have on this host. Of the others
            it stays unknown whether they are.
        """
        notes = _Gaps()
        host = notes.ask(StateSource.KERNEL, self._local.read_host)
        if host is not None:
            _note_unread(notes, host)
        found = notes.ask(StateSource.DOMAINS, self._read_domains)
        claims = notes.ask(StateSource.CLAIMS, self._read_claims)
        ours = notes.ask(StateSource.PROVIDERS, self._read_providers)
        allocations = None
        if ours is None:
            notes.note(
                StateSource.ALLOCATIONS, notes.why[StateSource.PROVIDERS]
            )
        else:
            allocations = notes.ask(
                StateSource.ALLOCATIONS,
                lambda: tuple(each for p in ours for each in self._of(p.uuid)),
            )
        known = collected_state.CollectedState(
            root=self.root,
            providers=ours,
            allocations=allocations,
            claims=claims,
            domains=found,
            host=host,
        )
        suspects = collected_state.StateIndex(known).unallocated()
        consumers = notes.ask(
            StateSource.ALLOCATIONS,
            lambda: {uuid: self._consumer(uuid) for uuid, _ in suspects},
        )
        bare = frozenset(
            uuid
            for uuid, each in (consumers or {}).items()
            if self.root.uuid not in each.allocations
        )
        lacking = {uuid for _, uuid in suspects}
        if bare:
            lacking.add(self.root.uuid)
        inventories = notes.ask(
            StateSource.PROVIDERS,
            lambda: {uuid: self._inventories(uuid) for uuid in lacking},
        )
        holders = {each.consumer for each in allocations or ()}
        moves, servers = self._read_nova(notes, holders, only, bare)
        return dataclasses.replace(
            known,
            consumers=consumers or {},
            inventories=inventories or {},
            servers=servers,
            migrations=moves,
            unasked=notes.why,
        )

    def _consumer(self, uuid: str) -> collected_state.ConsumerAllocations:
        allocations, fields, _ = self._placement.read(
            f"/allocations/{provider_records.checked(uuid)}",
            provider_records.parse_consumer,
        )
        return collected_state.ConsumerAllocations(
            allocations=allocations,
            project=str(fields.get("project_id") or ""),
            user=str(fields.get("user_id") or ""),
        )

    def _inventories(self, provider: str) -> collected_state.Inventories:
        found = self._placement.read(
            provider_records.provider_path(provider, "inventories"),
            provider_records.parse_inventories,
        )
        return found[1] if found else {}

    def _read_nova(
        self,
        notes: "_Gaps",
        holders: set[str],
        only: frozenset[str] | None,
        unallocated: frozenset[str],
    ) -> tuple[
        tuple[nova_types.Migration, ...] | None,
        dict[str, nova_types.Server | None] | None,
    ]:
        """Return the moves and the servers that Nova has."""
        host = notes.ask(
            StateSource.SERVERS,
            lambda: nova_api.read_host(self._door, self.root.uuid),
        )
        if host is None:
            notes.note(StateSource.MIGRATIONS, notes.why[StateSource.SERVERS])
            return None, None
        moves = notes.ask(
            StateSource.MIGRATIONS,
            lambda: nova_api.read_moves(self._door, host),
        )
        found = notes.ask(
            StateSource.SERVERS,
            lambda: nova_api.read_servers(
                self._door, host, holders, moves, only, unallocated
            ),
        )
        servers, reason = found or (None, "")
        if reason:
            notes.note(StateSource.SERVERS, reason)
        return moves, servers

    def look_everywhere(
        self, only: str = ""
    ) -> collected_state.CollectedState:
        """Return what is known of the providers of all hosts.

        :param only: a provider, of whose host alone is told.
        """
        notes = _Gaps()
        found = notes.ask(StateSource.EVERYWHERE, lambda: self._list(""))
        if only and found is not None:
            roots = {p.root for p in found if p.uuid == only}
            found = tuple(p for p in found if p.root in roots)
        gone: frozenset[str] | None = None
        used: frozenset[str] | None = None
        if found is not None:
            listed = found
            gone = notes.ask(
                StateSource.HYPERVISORS, lambda: self._read_gone(listed)
            )
            used = notes.ask(
                StateSource.EVERYWHERE,
                lambda: self._read_used(listed, gone or frozenset()),
            )
        return collected_state.CollectedState(
            root=self.root,
            everywhere=None if used is None else found,
            gone=gone,
            used=used or frozenset(),
            unasked=notes.why,
        )

    def _read_used(
        self,
        found: Iterable[collected_state.AuditedProvider],
        gone: frozenset[str],
    ) -> frozenset[str]:
        """Return the providers of gone hosts that have allocations."""
        return frozenset(
            p.uuid for p in found if p.root in gone and any(self._of(p.uuid))
        )

    def is_claimed(self, handle: str) -> bool:
        """Return whether a server has a claim on a partition by now.

        :raises AcceleratorError: that can't be told.
        """
        return any(c.handle == handle for c in self._read_claims())

    @property
    def _door(self) -> rest.RestClient:
        if self._compute is None:
            raise nova_api.NoAnswerError(self._why)
        return self._compute

    def _read_domains(self) -> tuple[domains.Domain, ...]:
        if self._local.read_domains is None:
            raise nova_api.NoAnswerError(self._local.why)
        return tuple(self._local.read_domains())

    def _read_claims(self) -> tuple[model.Claim, ...]:
        book = self._local.read_book()
        if not book.is_known:
            raise nova_api.NoAnswerError(book.reason)
        if book.root != self.root:
            node = book.root.name if book.root else "nobody"
            raise nova_api.NoAnswerError(
                f"what nova-compute has published is of {node}"
            )
        return book.claims

    def _read_providers(self) -> tuple[collected_state.AuditedProvider, ...]:
        """Return our providers below the root, marked or provable."""
        query = f"in_tree={self.root.uuid}"
        marked = {p.uuid for p in self._list(query)}
        found = self._placement.read(
            f"/resource_providers?{query}", _parse_providers
        )
        listed = {p.uuid: p for p in found if p.uuid != self.root.uuid}
        return tuple(
            provider
            for uuid, provider in listed.items()
            if names.is_our_provider(
                self.root.uuid, self.root.name, provider.name, uuid
            )
            or (
                uuid in marked
                and not provider_cache.is_of_another(uuid, listed)
            )
        )

    def _list(self, query: str) -> tuple[collected_state.AuditedProvider, ...]:
        """Return the providers that are marked as ours."""
        wanted = "&".join(filter(None, (query, f"required={_OWNER}")))
        path = f"/resource_providers?{wanted}"
        found = self._placement.read_with_trait(path, _OWNER, _parse_providers)
        return found or ()

    def _of(self, provider: str) -> tuple[collected_state.Allocation, ...]:
        """Return the allocations of a provider; none if it is gone."""
        found = self._placement.read(
            f"/resource_providers/{provider}/allocations",
            provider_records.parse_allocations,
        )
        return tuple(
            collected_state.Allocation(
                provider=provider, consumer=consumer, amounts=amounts
            )
            for consumer, amounts in (found[1] if found else {}).items()
        )

    def _read_gone(
        self, everywhere: Iterable[collected_state.AuditedProvider]
    ) -> frozenset[str]:
        """Return the roots of providers that Nova surely has no more.

        Not those that Nova never had: a pass from outside keeps them.
        """
        roots = {p.root for p in everywhere} - {self.root.uuid}
        return frozenset(
            root
            for root in nova_api.find_lost(self._door, roots)
            if self._was_novas(root)
        )

    def _was_novas(self, root: str) -> bool:
        path = f"/resource_providers/{root}/traits"
        found = self._placement.read(
            path, provider_records.parse_provider_traits
        )
        return found is not None and collected_state.COMPUTE_TRAIT in found[1]


class _Gaps:
    """What was not asked, and why."""

    def __init__(self) -> None:
        self.why: dict[StateSource, str] = {}

    def note(self, source: StateSource, reason: str) -> None:
        self.why[source] = reason

    def ask(self, source: StateSource, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except errors.AcceleratorError as error:
            self.note(source, str(error))
        return None


def _note_unread(notes: _Gaps, host: model.HostState) -> None:
    """Say what of the kernel is not known, if anything is."""
    if host.unknown:
        unread = ", ".join(sorted(host.unknown))
        notes.note(StateSource.KERNEL, f"{unread} can't be read")
    elif not host.complete:
        notes.note(
            StateSource.KERNEL,
            "not all can be read: "
            + "; ".join(f"{p.where}: {p.reason}" for p in host.problems),
        )


def _parse_providers(body: Any) -> tuple[collected_state.AuditedProvider, ...]:
    return tuple(
        collected_state.AuditedProvider(
            uuid=str(each["uuid"]),
            name=str(each["name"]),
            parent=str(each["parent_provider_uuid"] or ""),
            root=str(each["root_provider_uuid"]),
        )
        for each in body["resource_providers"]
    )
