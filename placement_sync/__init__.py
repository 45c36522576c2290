# SPDX-License-Identifier: Apache-2.0
"""Synchronization of a host's provider tree with Placement, and commands.

Packages, from the bottom up; a package imports only those before it:

- ``client``: REST and RPC clients of Placement and Nova;
  ``resource_providers.PlacementClient``, ``rest.RestClient``
- ``sync``: one pass from a desired tree to calls;
  ``sync_pass.Synchronizer``, ``diff.plan``
- ``daemon``: passes at an interval, status file, metrics, systemd;
  ``loop.Loop``, ``heartbeat.Heartbeat``, ``metrics.Metrics``
- ``cli``: the ``placement-sync`` command

Packages of their own, which the core never imports:

- ``fleet``: commands of the cloud, flavors, explanations, the report
- ``audit``: comparison of claims, allocations, domains and partitions;
  ``checks.compare``, ``heal.Healer``; metering
- ``licenses``: licence tokens for guests with NVIDIA vGPUs
"""
