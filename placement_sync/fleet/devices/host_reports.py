# SPDX-License-Identifier: Apache-2.0
"""Last reports of hosts to Nova: what a fleet says of a host is as old.

Placement has no time of a host's last pass: it stores changes only. Nova has
the time of each service's last report, and calls a service down that has not
reported for ``[DEFAULT] service_down_time``. nova-compute makes the passes
over its accelerators, so the devices of a host that is down are *stale*.
"""

import contextlib
import datetime
from collections.abc import Mapping

from nova_accel import errors
from placement_sync.client import nova_api, rest
from placement_sync.fleet.devices import drain_notes

Reports = Mapping[str, nova_api.ComputeService]
#: Noun phrase of the gap of a fleet whose hosts' reports were not read.
SUBJECT = "last reports of the hosts"


def read(
    compute: rest.RestClient,
) -> tuple[Reports, str]:
    """Return the services of compute nodes by uuid, and why there are none.

    Reports that can't be read are a gap, no error: no host is stale then.
    """
    try:
        return nova_api.list_services(compute), ""
    except errors.ServiceError as error:
        return {}, f"{SUBJECT} ({error})"


def describe_host(compute: rest.RestClient, host: str) -> str:
    """Return a nova-compute with the age of its last report, for a wait.

    Users that may not list services get no age.

    :param host: name of its service.
    """
    with contextlib.suppress(errors.ServiceError):
        service = nova_api.find_service(compute, host)
        if service is not None:
            now = datetime.datetime.now(datetime.UTC)
            report = describe_silence(service, now)
            state = "" if service.is_up else "Nova calls it down, "
            return f"nova-compute on {host} ({state}{report})"
    return f"nova-compute on {host}"


def describe(
    service: nova_api.ComputeService | None, now: datetime.datetime
) -> str:
    """Return ``2m ago``, ``stale, 3h ago``, ``stale, never`` or ``unknown``.

    :param service: None if Nova shows no service of the host.
    """
    if service is None:
        return "unknown"
    age = drain_notes.format_age(service.reported, now)
    text = f"{age} ago" if age else "never"
    return text if service.is_up else f"stale, {text}"


def explain_stale(
    service: nova_api.ComputeService, now: datetime.datetime
) -> str:
    """Return why a host is stale, in words."""
    since = describe_silence(service, now)
    return f"nova-compute of {service.host} is down, {since}"


def describe_silence(
    service: nova_api.ComputeService, now: datetime.datetime
) -> str:
    """Return ``last report 3h ago``, or ``no report ever``."""
    age = drain_notes.format_age(service.reported, now)
    return f"last report {age} ago" if age else "no report ever"
