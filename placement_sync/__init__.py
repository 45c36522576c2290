# SPDX-License-Identifier: Apache-2.0
"""The provider tree on paper against the tree in the service."""
