# SPDX-License-Identifier: Apache-2.0
"""Providers and allocations: Nova's report, and the background pass.

- ``reporter``: ``Reporter``: owned providers in Nova's tree and client
- ``provider_writer``: ``ProviderWriter``: the writer of providers
- ``nova_provider_tree``: planned calls, applied to Nova's tree
- ``tracker_allocations``: ``TrackerAllocations``: read by their first use
- ``reconcile``: ``Reconciler``: background pass over Placement
- ``claim_checks``: ``Consumers``: claims that Nova does not back any more;
  ``MissingAllocations``: claims not allocated
- ``server_allocations``: ``ServerAllocations``: changes of one server
"""
