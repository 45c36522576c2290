# SPDX-License-Identifier: Apache-2.0
"""Removal of this library from a host: ``nova-accel remove``."""
