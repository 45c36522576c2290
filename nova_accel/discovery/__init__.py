# SPDX-License-Identifier: Apache-2.0
"""Discovery: the accelerators of a host, read in passes."""
