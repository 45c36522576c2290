# SPDX-License-Identifier: Apache-2.0
"""Allocations and slots of one server, added and removed."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib import parse

from nova import exception, objects, utils
from nova.compute import resource_tracker

from nova_accel import errors, model
from nova_accel.model import flavors, names

# The newest that Nova 32 to 34 ask Placement for candidates with
# (scheduler/client/report.py, SAME_SUBTREE_VERSION); a consumer's
# generation goes with its allocations from 1.28 on.
_MICROVERSION = "1.36"
_OK, _CHANGED = 200, 204
_CONCURRENT = "placement.concurrent_update"
# How often allocations are written anew that others changed meanwhile: as
# often as Nova's own client does (report.py, retries).
_ATTEMPTS = 4
_MOST = 1000


class ServerAllocations:
    """A server's allocations and slots, changed one at a time."""

    def __init__(self, virtapi: Any) -> None:
        """Use Nova's client of Placement, and its resource tracker."""
        self._virtapi = virtapi

    @property
    def _client(self) -> Any:
        return self._virtapi.reportclient

    @property
    def _tracker(self) -> Any:
        return self._virtapi._compute.rt

    # -- Placement ---------------------------------------------------------

    def find_candidates(
        self, context: Any, root: str, group: flavors.RequestGroup
    ) -> frozenset[str]:
        """Return the providers of one host that Placement would give.

        :param root: uuid of the compute node.
        :raises ServiceError: Placement did not answer.
        """
        wanted = group.required | {names.OWNER_TRAIT}
        query = {
            f"resources{group.suffix}": ",".join(
                f"{n}:{amount}"
                for n, amount in sorted(group.resources.items())
            ),
            f"required{group.suffix}": ",".join(sorted(wanted)),
            f"in_tree{group.suffix}": root,
            "limit": str(_MOST),
        }
        path = f"/allocation_candidates?{parse.urlencode(query, safe=',:')}"
        with _asking("candidates"):
            answer = self._client.get(
                path,
                version=_MICROVERSION,
                global_request_id=context.global_id,
            )
        if answer.status_code != _OK:
            raise _failed("candidates", answer)
        return frozenset(
            uuid
            for request in answer.json()["allocation_requests"]
            for uuid in request["allocations"]
        )

    def read(self, context: Any, server: str) -> dict[str, dict[str, int]]:
        """Return a server's allocations: amounts by provider and class.

        :raises ServiceError: Placement can't be asked.
        """
        found = self._read(context, server)["allocations"]
        return {u: dict(each["resources"]) for u, each in found.items()}

    def allocate(
        self,
        context: Any,
        server: str,
        provider: str,
        amounts: Mapping[str, int],
    ) -> None:
        """Let a server have exactly these amounts of a provider.

        Nothing else that it has is changed, and nothing is sent where it
        has them already. It may be done twice.

        :param amounts: by resource class; none for nothing at all.
        :raises ServiceError: Placement refuses it, or can't be asked.
        """
        wanted = {name: n for name, n in amounts.items() if n}
        for _ in range(_ATTEMPTS):
            known = self._read(context, server)
            held = known["allocations"].get(provider, {}).get("resources", {})
            if held == wanted:
                return
            if wanted:
                known["allocations"][provider] = {"resources": wanted}
            else:
                del known["allocations"][provider]
            with _asking(f"allocation of {server}"):
                answer = self._client.put(
                    f"/allocations/{server}",
                    known,
                    version=_MICROVERSION,
                    global_request_id=context.global_id,
                )
            if answer.status_code == _CHANGED:
                return
            if _code(answer) != _CONCURRENT:
                break
        raise _failed(f"allocation of {server}", answer)

    def _read(self, context: Any, server: str) -> Any:
        with _asking(f"allocation of {server}"):
            return self._client.get_allocs_for_consumer(context, server)

    # -- Nova's tracker ----------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether the tracker has looked at this host."""
        return self._tracker.provider_tree is not None

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def take_slot(
        self,
        instance: Any,
        provider: str,
        resources: Mapping[str, int],
        write: Callable[[model.Slot], None],
    ) -> model.Slot:
        """Claim a slot for a server as Nova's own claims do, and save it.

        Nova's lock is held while the server is saved, as Nova holds it:
        a pass in between would hand the slot to somebody else.

        If the slot itself can't be saved, or the answer is lost, it may be
        in Nova's database. It stays assigned in the tracker then: if it
        was saved, ``give_slots`` releases it, once; if it was not, Nova's
        next periodic task does, which reads all slots from the database
        (resource_tracker.py, _populate_assigned_resources).

        :param write: writes down the slot in the server. That is saved
            first: a slot that a server has and nobody wrote down would
            never be given back.
        :raises ClaimError: there is none, or not exactly one.
        """
        tracker = self._tracker
        try:
            given = tracker._claim_resources(
                {provider: {"resources": dict(resources)}}
            )
        except exception.ComputeResourcesUnavailable as error:
            raise errors.ClaimError(instance.uuid, str(error)) from error
        try:
            if given is None or len(given) != 1:
                raise errors.ClaimError(
                    instance.uuid,
                    "Nova claimed no slot on this host: its view of the"
                    " provider tree is old; the next periodic update mends"
                    " it",
                )
            slot = _slot(given[0])
            write(slot)
            instance.save()
        except BaseException:
            tracker._release_assigned_resources(given)
            raise
        held = list(instance.resources or ())
        instance.resources = objects.ResourceList(objects=[*held, *given])
        instance.save()
        return slot

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def give_slots(
        self,
        instance: Any,
        slots: Iterable[model.Slot],
        write: Callable[[], None],
    ) -> None:
        """Give up slots of a server, and save it.

        Only slots that the server has in Nova's database are released, as
        no other server can have claimed these. It is read under Nova's lock.

        :param write: writes more of the server, which is saved last.
        """
        gone = {(slot.provider, slot.identifier) for slot in slots}
        held = list(_read_resources(instance))
        given = [r for r in held if (r.provider_uuid, r.identifier) in gone]
        if given:
            kept = [r for r in held if r not in given]
            instance.resources = (
                objects.ResourceList(objects=kept) if kept else None
            )
        write()
        instance.save()
        self._tracker._release_assigned_resources(given)


def _read_resources(instance: Any) -> Iterable[Any]:
    """Return the resources of a server as Nova's database has them now."""
    now = objects.Instance.get_by_uuid(
        instance._context, instance.uuid, expected_attrs=["resources"]
    )
    return now.resources or ()


def _slot(resource: Any) -> model.Slot:
    return model.Slot(
        provider=resource.provider_uuid,
        resource_class=resource.resource_class,
        identifier=resource.identifier,
    )


def _code(answer: Any) -> str:
    try:
        return str(answer.json()["errors"][0]["code"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""


def _failed(what: str, answer: Any) -> errors.ServiceError:
    return errors.ServiceError(
        "Placement", what, answer.status_code, answer.text
    )


@contextlib.contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn what Nova's client raises into an error of ours."""
    try:
        yield
    except Exception as error:
        raise errors.ServiceError(
            "Placement", what, None, str(error)
        ) from error
