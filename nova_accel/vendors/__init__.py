# SPDX-License-Identifier: Apache-2.0
"""Vendor drivers: one technology, one file or folder each.

They implement ``nova_accel.discovery.plugin.Driver``; ``noop`` is the
template of a new one.
"""
