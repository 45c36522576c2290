# SPDX-License-Identifier: Apache-2.0
"""What fits on a card: sizes, places, GPU instances, distances. No I/O."""
