# SPDX-License-Identifier: Apache-2.0
"""Profiles of a whole cloud, and flavors that request them.

- ``cloud``: reads devices from Placement and flavors from Nova
- ``offered_devices``: ``Cloud``, ``OfferedDevice``, ``ProfileTerms``
- ``profile_list``: ``list_profiles`` of a cloud
- ``lookup``: ``find_profile``, ``select_host``, ``model_trait`` by name
- ``flavor_specs``: extra specs from and to ``FlavorContents``
- ``flavor_rules``: why a flavor can't be served by any host
- ``room``: for how many servers there is room
- ``flavor_text``: ``FlavorReport`` as text and JSON

All but ``cloud`` are pure.
"""
