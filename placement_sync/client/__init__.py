# SPDX-License-Identifier: Apache-2.0
"""Clients of Placement and Nova: REST and RPC."""
