# SPDX-License-Identifier: Apache-2.0
"""Plans of moves that make room for a profile, and their execution."""
