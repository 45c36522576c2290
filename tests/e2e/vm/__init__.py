# SPDX-License-Identifier: Apache-2.0
"""Tests of the lab VM alone, without a cloud."""
