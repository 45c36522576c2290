# SPDX-License-Identifier: Apache-2.0
"""One pass over a host: drivers, scan, changes, snapshot, capture."""
