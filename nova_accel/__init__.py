# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a compute host as Placement inventory for Nova."""
