# SPDX-License-Identifier: Apache-2.0
"""Reasons why a flavor has no host, and ``nova-accel explain``.

- ``no_candidates``: ``find_refusal``, for requests without any candidate
- ``simulation``: ``simulate``, a scheduling request card by card
- ``commands``: declarations of the commands
- ``capacity_command``, ``explain_command``, ``flavor_command``,
  ``import_command``: implementations
- ``flavor_options``: options about the devices that a flavor requests
- ``cloud_context``: clients and rules for commands about flavors
"""
