# SPDX-License-Identifier: Apache-2.0
"""Tests of the records of ``tests/run``."""
