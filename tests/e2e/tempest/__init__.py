# SPDX-License-Identifier: Apache-2.0
"""Tests of OpenStack's own, unmodified, against the lab."""
