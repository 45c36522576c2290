# SPDX-License-Identifier: Apache-2.0
"""Queries to Placement, and caches of the responses."""
