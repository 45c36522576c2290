# SPDX-License-Identifier: Apache-2.0
"""Intel FPGA cards, which the kernel shows as Device Feature Lists."""
