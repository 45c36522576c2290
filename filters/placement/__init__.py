# SPDX-License-Identifier: Apache-2.0
"""Queries to Placement, and caches of the responses.

- ``queries``: queries for the providers that may serve request groups
- ``report_client``: getter that uses Nova's own client
- ``provider_reader``: providers, read again when their generation changes
- ``host_usage``, ``stale_cache``: usage of all hosts, for the weigher
"""
