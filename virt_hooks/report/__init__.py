# SPDX-License-Identifier: Apache-2.0
"""The provider tree in Nova's own report, and its reconciliation."""
