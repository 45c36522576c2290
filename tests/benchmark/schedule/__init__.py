# SPDX-License-Identifier: Apache-2.0
"""Benchmark of scheduling: costs of requests, and their goals."""
