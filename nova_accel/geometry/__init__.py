# SPDX-License-Identifier: Apache-2.0
"""Placement of partitions on a device, and distances of devices. No I/O."""
