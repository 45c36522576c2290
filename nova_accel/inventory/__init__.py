# SPDX-License-Identifier: Apache-2.0
"""Inventory of a host as a resource provider tree. No I/O."""
