# SPDX-License-Identifier: Apache-2.0
"""Commands that adopt servers of Nova's own support."""
