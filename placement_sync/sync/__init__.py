# SPDX-License-Identifier: Apache-2.0
"""A provider tree against Placement: difference, one pass, refusals."""
