# SPDX-License-Identifier: Apache-2.0
"""placement_sync against the real Placement, over real HTTP."""
