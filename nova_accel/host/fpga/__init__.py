# SPDX-License-Identifier: Apache-2.0
"""Reading and programming FPGAs: Intel DFL, AMD Alveo."""
