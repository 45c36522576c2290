# SPDX-License-Identifier: Apache-2.0
"""Passes at an interval: loop, status file, metrics, systemd."""
