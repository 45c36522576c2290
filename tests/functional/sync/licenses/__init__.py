# SPDX-License-Identifier: Apache-2.0
"""Licence tokens for servers of the real Placement."""
