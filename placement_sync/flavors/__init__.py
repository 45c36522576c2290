# SPDX-License-Identifier: Apache-2.0
"""Profiles of a whole cloud, and flavors that request them.

- ``cloud``: reads devices from Placement and flavors from Nova
- ``offered_devices``: ``Cloud``, ``OfferedDevice``, ``ProfileTerms``
- ``profile_list``: ``list_profiles`` of a cloud
- ``lookup``: ``find_profile``, ``select_host``, ``model_trait`` by name
- ``flavor_specs``: extra specs from and to ``FlavorContents``
- ``feasibility``, ``feasibility_search``: can any host serve a flavor
- ``flavor_text``: ``FlavorReport`` as text and JSON

All but ``cloud`` are pure.
"""
