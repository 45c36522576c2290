# SPDX-License-Identifier: Apache-2.0
"""Getter for Placement in nova-scheduler, where it is the only client.

It authenticates with [placement] of the scheduler's nova.conf.
"""

from nova.scheduler.client import report

from placement_sync.client import nova_client
from placement_sync.client.provider_records import Get


def placement_getter(global_request_id: str | None = None) -> Get:
    """Return a getter that uses Nova's own Placement client.

    :param global_request_id: id of the API request, for Placement's log.
    """
    return nova_client.NovaClient(
        report.report_client_singleton, global_request_id
    ).fetch
