# SPDX-License-Identifier: Apache-2.0
"""Programs for machines with real accelerators; no step of tests/run."""
