# SPDX-License-Identifier: Apache-2.0
"""A driver of nova-accel for a card that does not exist."""
