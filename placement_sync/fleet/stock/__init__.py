# SPDX-License-Identifier: Apache-2.0
"""Stock: servers of each flavor that can start now, for users.

- ``stock_levels``: level of a flavor, from its simulation
- ``stock_reader``: stock of all flavors, from Placement and Nova
- ``stock_file``: the published file, and what a project may read of it
- ``stock_page``: the same as a page
- ``stock_command``: commands that publish and list it
- ``wsgi``: the service that users ask
"""
