# SPDX-License-Identifier: Apache-2.0
"""Intel's FPGAs: Device Feature List."""
