# SPDX-License-Identifier: Apache-2.0
"""Providers and allocations: Nova's report, and the background pass."""
