# SPDX-License-Identifier: Apache-2.0
"""Audit: compare claims, allocations, domains, partitions and providers.

The core does not import this package: ``setup.cfg`` registers it.
"""
