# SPDX-License-Identifier: Apache-2.0
"""Benchmark of density: cards of a host, and traces of clusters."""
