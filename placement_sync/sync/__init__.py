# SPDX-License-Identifier: Apache-2.0
"""One pass: compare a host's provider tree with Placement and change it."""
