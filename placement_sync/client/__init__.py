# SPDX-License-Identifier: Apache-2.0
"""Clients of Placement and Nova: REST and RPC.

- ``rest``: ``RestClient``, one service by nova.conf (``from_conf``)
- ``cloud_client``: the same by clouds.yaml, and parallel reads, for commands
- ``resource_providers``: ``PlacementClient`` fetches a provider tree and
  applies one of ``calls.Call``
- ``provider_records``: parsers of providers, and paths
- ``provider_cache``: providers by generation, with expiry
- ``nova_api``: servers, migrations, hypervisors, flavors
- ``nova_getter``: a ``Get`` over the client of a service of Nova
- ``drained_providers``: whether drained devices can still get a server
- ``http_errors``, ``sdk_errors``: errors
"""
