# SPDX-License-Identifier: Apache-2.0
"""Checks of ``nova-accel doctor``."""
