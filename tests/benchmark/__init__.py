# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that compare both sides in one run; no tests."""
