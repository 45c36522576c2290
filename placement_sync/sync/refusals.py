# SPDX-License-Identifier: Apache-2.0
"""Calls that Placement refused: retry, give up, or report with a hint."""

import dataclasses
from collections.abc import Callable, Iterator

from nova_accel import errors, model
from nova_accel.model import providers
from placement_sync.client import calls

FindRoot = Callable[[str], providers.ProviderRoot | None]

# Codes and statuses of Placement's errors (placement/errors.py).
CONCURRENT = "placement.concurrent_update"
DUPLICATE = "placement.duplicate_name"
HAS_CHILDREN = "placement.resource_provider.cannot_delete_parent"
_CLASS_IN_USE = "placement.inventory.inuse"
_IN_USE = "placement.resource_provider.inuse"
_UNAUTHORIZED = 401
_INTERNAL = 500

# Placement changes a parent from this version on.
_MOVE_BACK = (
    "openstack --os-placement-api-version 1.37 resource provider set --name"
    " {name} --parent-provider {parent} {uuid}"
)

_HINTS = {
    CONCURRENT: "other clients change it all the time; the next pass tries"
    " again",
    _CLASS_IN_USE: "servers were scheduled to it meanwhile; the next pass"
    " retains it for them",
    _IN_USE: "servers were scheduled to it meanwhile; the next pass retains"
    " it for them",
    HAS_CHILDREN: "it has child providers of another owner; all its units"
    " are reserved until 'openstack resource provider list --in-tree {uuid}'"
    " shows none and the next pass deletes it",
    DUPLICATE: "if it is below another provider, move it back:"
    f" '{_MOVE_BACK}'; otherwise find the provider that has its name with"
    " 'openstack resource provider list --name {name}'",
}
_HINT_FORBIDDEN = (
    "Placement's policy does not allow this user to write: give it the role"
    " that nova-compute's user has there, 'service' or 'admin'"
)
_HINT_OTHER = "the next pass tries again"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that Placement refused, and its error.

    ``name_owner`` is the uuid of another provider that has the name of the
    provider to create, empty for any other refusal.
    """

    call: calls.Call
    error: errors.ServiceError
    name_owner: str = ""

    @property
    def provider(self) -> str:
        """Return the provider's uuid; empty for a class or a trait."""
        return "" if isinstance(self.call, calls.Name) else self.call.uuid


# Kind of call, and uuid of its provider or name of its class or trait.
Key = tuple[type, str]


class RefusedCalls:
    """The refusals of one pass, over its attempts.

    The first refusal of a call may be due to a concurrent change: the next
    attempt plans again. A second refusal for a lasting reason gives the
    call up: it stays undone in this pass.
    """

    def __init__(self) -> None:
        self.undeletable: set[str] = set()
        self._last: dict[Key, RefusedCall] = {}
        self._now: dict[Key, RefusedCall] = {}
        self._given_up: dict[Key, RefusedCall] = {}
        self._undeletable_calls: dict[Key, RefusedCall] = {}
        self._missing: list[model.Problem] = []
        self._is_stale = False

    def begin_attempt(self) -> None:
        self._last, self._now = self._now, {}
        self._is_stale = False

    @property
    def is_final(self) -> bool:
        """Return whether another attempt would do no more than this one."""
        return not self._is_stale and self._now.keys() <= self._given_up.keys()

    def is_given_up(self, call: calls.Call) -> bool:
        return _build_key(call) in self._given_up

    def add(self, call: calls.Call, error: errors.ServiceError) -> None:
        """Record a refusal.

        A provider with children of another owner can't be deleted: from
        now on it counts as allocated.
        """
        key = _build_key(call)
        refusal = RefusedCall(call=call, error=error)
        if (
            isinstance(call, calls.DeleteProvider)
            and error.code == HAS_CHILDREN
        ):
            self.undeletable.add(call.uuid)
            self._undeletable_calls[key] = refusal
            self._is_stale = True
            return
        self._now[key] = refusal
        is_lasting = not is_transient(error) and error.code != CONCURRENT
        if is_lasting and key in self._last:
            self._given_up[key] = refusal

    def give_up(self, refusal: RefusedCall) -> None:
        """Leave a call undone in this pass, because it can't succeed."""
        self._given_up[_build_key(refusal.call)] = refusal

    def add_missing_root(self, root: providers.ProviderRoot) -> None:
        """Record that the compute node itself is missing."""
        self._missing.append(
            model.Problem(
                where=root.name,
                reason="this compute node is not registered: Placement has"
                f" no resource provider {root.uuid}; start nova-compute,"
                " which registers it, or let a host without one be"
                " registered by the pass",
            )
        )

    def check_transient(self) -> None:
        """Raise the ServiceError of a call that may succeed later."""
        for refusal in self._now.values():
            if is_transient(refusal.error):
                raise refusal.error

    def problems(self) -> tuple[model.Problem, ...]:
        """Return the calls left undone, each with a hint."""
        undone = self._undeletable_calls | self._given_up | self._now
        refused = undone.values()
        taken = [refusal for refusal in refused if refusal.name_owner]
        return (
            *self._missing,
            *([_build_taken_names_problem(taken)] if taken else []),
            *(_build_problem(r) for r in refused if not r.name_owner),
        )


def find_moved(
    actual: providers.ProviderTree, desired: providers.ProviderTree
) -> Iterator[model.Problem]:
    """Yield a problem for each provider with another name or parent."""
    stored = {node.uuid: node for node in actual.nodes}
    for node in desired.nodes:
        now = stored.get(node.uuid, node)
        if (now.name, now.parent) != (node.name, node.parent):
            command = _MOVE_BACK.format(
                name=node.name, parent=node.parent, uuid=node.uuid
            )
            yield model.Problem(
                where=node.name,
                reason="an operator has renamed or moved it: in Placement it"
                f" is {now.name} below {now.parent}; set it back with"
                f" '{command}'",
            )


def find_name_owner(
    call: calls.Call, error: errors.ServiceError, find_root: FindRoot
) -> str:
    """Return the uuid of the other provider with a name, or "".

    :param call: the call that Placement refused with ``error``.
    """
    if not isinstance(call, calls.CreateProvider) or error.code != DUPLICATE:
        return ""
    name_owner = find_root(call.name)
    return (
        name_owner.uuid if name_owner and name_owner.uuid != call.uuid else ""
    )


def is_transient(error: errors.ServiceError) -> bool:
    """Return whether the same call may succeed later.

    An expired token (401) is replaced by the next request.
    """
    return error.is_transient or error.status == _UNAUTHORIZED


def is_retriable(error: errors.ServiceError) -> bool:
    """Return whether a new attempt may succeed after this error."""
    return is_transient(error) or error.is_conflict


def ends_pass(error: errors.ServiceError) -> bool:
    """Return whether every further call would fail like this one.

    An internal error (500) may concern this provider only.
    """
    if error.status is None:
        return True
    return is_transient(error) and error.status != _INTERNAL


def _build_key(call: calls.Call) -> Key:
    return type(call), call.name if isinstance(call, calls.Name) else call.uuid


def _build_problem(refusal: RefusedCall) -> model.Problem:
    call, error = refusal.call, refusal.error
    return model.Problem(
        where=call.name,
        reason=f"can't {call}: {error}; {_get_hint(refusal)}",
    )


def _build_taken_names_problem(taken: list[RefusedCall]) -> model.Problem:
    taken = sorted(taken, key=lambda refusal: refusal.call.name)
    names = ", ".join(f"{r.call.name} ({r.name_owner})" for r in taken)
    delete = " && ".join(
        f"openstack resource provider delete {r.name_owner}" for r in taken
    )
    return model.Problem(
        where=taken[0].call.name,
        reason="other providers have the names of providers of this host,"
        f" most likely from a former registration of the host: {names}. If"
        " Nova does not have that compute node any more, 'nova-accel audit"
        " --heal' deletes those without allocations; otherwise see"
        " 'openstack resource provider show --allocations"
        f" {taken[0].name_owner}', then '{delete}'. The names are tried again"
        " every few minutes",
    )


def _get_hint(refusal: RefusedCall) -> str:
    if refusal.error.is_forbidden:
        return _HINT_FORBIDDEN
    hint = _HINTS.get(refusal.error.code, _HINT_OTHER)
    return hint.format(
        name=refusal.call.name,
        uuid=refusal.provider,
        parent=getattr(refusal.call, "parent", ""),
    )


class Nesting:
    """Parents of providers, and the providers that are stopped.

    :param trees: the later one's parents count.
    """

    def __init__(self, *trees: providers.ProviderTree) -> None:
        self._parents = {n.uuid: n.parent for t in trees for n in t.nodes}
        self._stopped: set[str] = set()

    def stop(self, call: calls.Call) -> None:
        """Stop the provider of a call for this attempt."""
        if not isinstance(call, calls.Name):
            self._stopped.add(call.uuid)

    def is_stopped(self, call: calls.Call) -> bool:
        """Return whether a call has to wait for another attempt.

        Calls on a stopped provider and on its descendants wait, and so do
        deletes of its ancestors.
        """
        if isinstance(call, calls.Name):
            return False
        if self._stopped & self._list_lineage(call.uuid):
            return True
        return isinstance(call, calls.DeleteProvider) and any(
            call.uuid in self._list_lineage(uuid) for uuid in self._stopped
        )

    def _list_lineage(self, uuid: str) -> set[str]:
        """Return a provider and its ancestors."""
        lineage = {uuid}
        while uuid := self._parents.get(uuid, ""):
            lineage.add(uuid)
        return lineage
