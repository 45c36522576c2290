# SPDX-License-Identifier: Apache-2.0
"""Passes at an interval: loop, status file, metrics, systemd.

- ``loop``: ``Loop``, a thread with interval, jitter, back-off and debounce
- ``serve``: ``serve``, the daemon of placement-sync
- ``status``: ``Status``, the result of a host's passes
- ``heartbeat``: ``Heartbeat`` writes the status file, ``read`` reads all
- ``metrics``: ``Metrics``, Prometheus metrics by file or port
"""
