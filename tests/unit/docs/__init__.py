# SPDX-License-Identifier: Apache-2.0
"""Tests of the manual: its commands, options and names are real."""
