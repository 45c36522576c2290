# SPDX-License-Identifier: Apache-2.0
"""Seam into nova-scheduler: the choices of a flavor, one after another.

``SchedulerManager.select_destinations`` is wrapped: a request whose flavor
has ``accelerator:profiles`` is scheduled with the flavor of each choice until
one has hosts. So all of Nova's filters judge each choice, no choice is tried
while an earlier one fits, and one that fits costs no further query.

A request for several servers is one request: all of them get the same
choice. The host stores what its server got (``virt_hooks.instance``).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import exception, objects
from nova.scheduler import manager, utils
from oslo_log import log as logging

from filters import moved_server
from filters.placement.report_client import placement_getter
from nova_accel import errors
from nova_accel.catalog import loader, profile_order
from nova_accel.config import logs
from placement_sync.client import provider_records

LOG = logging.getLogger(__name__)
_METHOD = "select_destinations"


def install() -> None:
    """Wrap Nova's method, once.

    Without it a flavor with choices is that of the first one.
    """
    stock = getattr(manager.SchedulerManager, _METHOD, None)
    if not callable(stock):
        LOG.warning(
            "Nova has no SchedulerManager.%s; of flavors with %s only the"
            " first profile is given",
            _METHOD,
            profile_order.KEY,
        )
    elif not hasattr(stock, "orders_profiles"):
        setattr(manager.SchedulerManager, _METHOD, _wrap(stock))


def _wrap(stock: Any) -> Any:
    @functools.wraps(stock)
    def select_destinations(
        self: Any, context: Any, *arguments: Any, **named: Any
    ) -> Any:
        spec = named.get("spec_obj")
        schedule = functools.partial(stock, self, context, *arguments)
        if not _has_order(spec):
            return schedule(**named)
        return _select(context, spec, schedule, named)

    select_destinations.orders_profiles = True  # type: ignore[attr-defined]
    return select_destinations


def _has_order(spec: Any) -> bool:
    """Return whether a request's flavor has choices.

    Only loaded fields are read.
    """
    return (
        isinstance(spec, objects.RequestSpec)
        and "flavor" in spec
        and "extra_specs" in spec.flavor
        and profile_order.KEY in spec.flavor.extra_specs
    )


@oslo_messaging.expected_exceptions(exception.NoValidHost)
def _select(
    context: Any, spec: Any, schedule: Any, named: Mapping[str, Any]
) -> Any:
    """Return the destinations of the first choice that has some.

    :raises nova.exception.NoValidHost: none has, or the list of choices
        can't be used.
    """
    if utils.request_is_rebuild(spec):
        return schedule(**named)
    reasons: list[str] = []
    choices = list(_list_choices(context, spec))
    while choices:
        choice = choices.pop(0)
        attempt = spec.obj_clone()
        attempt.flavor = spec.flavor.obj_clone()
        attempt.flavor.extra_specs = dict(choice.specs)
        try:
            selected = schedule(**{**named, "spec_obj": attempt})
        except (exception.NoValidHost, oslo_messaging.ExpectedException) as e:
            reason = _read_reason(e)
            # A server that moves has one choice, without a name.
            reasons.append(f"{choice.name}: {reason}".removeprefix(": "))
            if len(reasons) == 1:
                choices = _select_offered(context, choices)
        else:
            if reasons:
                LOG.info(
                    "Request %s gets %s: no host for %s",
                    getattr(spec, "instance_uuid", ""),
                    choice.name,
                    "; ".join(reasons),
                )
            return selected
    raise exception.NoValidHost(reason="; ".join(reasons))


def _read_reason(
    error: exception.NoValidHost | oslo_messaging.ExpectedException,
) -> str:
    """Return the reason of Nova's refusal.

    :raises Exception: the expected error is another one.
    """
    cause: Any = error
    if isinstance(error, oslo_messaging.ExpectedException):
        cause = error.exc_info[1]
    if not isinstance(cause, exception.NoValidHost):
        raise cause
    return str(cause.kwargs.get("reason") or "no host has room")


def _list_choices(context: Any, spec: Any) -> Sequence[profile_order.Choice]:
    """Return the choices of a request.

    A server that moves keeps what it has got, unless it is resized.

    :raises nova.exception.NoValidHost: the list can't be used.
    """
    cell = moved_server.find_cell(spec)
    if cell is not None:
        server = moved_server.read(context, cell, spec.instance_uuid, "flavor")
        own = server.flavor
        if (
            own.flavorid == spec.flavor.flavorid
            and profile_order.KEY not in own.extra_specs
        ):
            return [profile_order.Choice(name="", specs=own.extra_specs)]
    try:
        return profile_order.list_choices(
            spec.flavor.extra_specs, loader.load()
        )
    except errors.MalformedError as error:
        raise exception.NoValidHost(reason=str(error)) from error


def _select_offered(
    context: Any, choices: list[profile_order.Choice]
) -> list[profile_order.Choice]:
    """Return the choices whose traits Placement knows.

    It refuses a query with others, which no host has ever offered.
    """
    traits = sorted(frozenset().union(*(each.traits for each in choices)))
    if not traits:
        return choices
    try:
        existing = provider_records.read(
            placement_getter(context.global_id),
            f"/traits?name=in:{','.join(traits)}",
            provider_records.parse_traits,
        )
    except errors.ServiceError as error:
        logs.warning(LOG, "Traits of profiles were not checked: %s", error)
        return choices
    return [each for each in choices if each.traits <= existing]
