# SPDX-License-Identifier: Apache-2.0
"""AMD's Alveo FPGAs."""
