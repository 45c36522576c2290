# SPDX-License-Identifier: Apache-2.0
"""Reads of sysfs, procfs and configuration space, and the udev monitor."""
