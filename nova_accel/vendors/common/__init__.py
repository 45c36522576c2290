# SPDX-License-Identifier: Apache-2.0
"""Base classes, checks and descriptions that several vendor drivers share."""
