# SPDX-License-Identifier: Apache-2.0
"""Stock: servers of each flavor that can start now, for users."""
