# SPDX-License-Identifier: Apache-2.0
"""Remaining capacity of a card, as its providers have it. No I/O."""
