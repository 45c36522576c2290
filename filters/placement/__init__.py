# SPDX-License-Identifier: Apache-2.0
"""Queries to Placement, and caches of the responses.

- ``queries``: queries for the providers that may serve request groups
- ``report_client``: getter that uses Nova's own client
- ``provider_names``, ``summaries``: names and states of candidates' providers
- ``stale_cache``: values of other services, for ``filters.glance_images``
"""
