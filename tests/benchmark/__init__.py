# SPDX-License-Identifier: Apache-2.0
"""What is measured, side by side in one run; no test."""
