# SPDX-License-Identifier: Apache-2.0
"""Commands about flavors: ``openstack accel explain`` and others.

- ``simulation``: ``simulate``, a scheduling request card by card
- ``commands``: declarations of the commands
- ``capacity_command``, ``explain_command``, ``flavor_command``,
  ``import_command``: implementations
- ``flavor_options``: options about the devices that a flavor requests
- ``cloud_context``: clients and rules for commands about flavors
"""
