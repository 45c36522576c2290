# SPDX-License-Identifier: Apache-2.0
"""Tests of placement_sync with a real Placement over HTTP."""
