# SPDX-License-Identifier: Apache-2.0
"""Partitions of servers: claimed, made, scrubbed, released."""
